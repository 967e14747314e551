"""A thread holds the lock of the logging handler while it writes to a pipe that its reader empties slowly.

The log goes to a pipe (`| tee`, a log shipper, kubectl). Telemetry of another thread is long: 32 KiB a record. Then the
reader takes 8 KiB in 15 ms: that thread blocks in write() with the handler's lock, and the training thread, which only
wants to say one line a step, waits for the lock, and sometimes for room itself.

Source: https://github.com/volcengine/OpenViking/issues/2752 (the same in a server)
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Fault, at
from bench.situations.program import Gpu, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_PIPE = "log.pipe"
_RECORD = "x" * (32 << 10)
logger = logging.getLogger("train")


def shipper(folder: Path) -> None:
    """Reads the log and sends it on."""
    naming.name_this_thread("log-shipper")
    lifecycle.announce("ready")
    pipe = os.open(folder / _PIPE, os.O_RDONLY)
    while os.read(pipe, 8 << 10):
        if has_begun(folder):
            time.sleep(0.015)


def dump_counters() -> None:
    """Logs one long record."""
    logger.debug(_RECORD)


def report_telemetry() -> None:
    """The thread with the long records."""
    naming.name_this_thread("telemetry")
    while True:
        dump_counters()
        time.sleep(0.030)


def report_step(step: int) -> None:
    """The line that the training loop logs."""
    logger.info("step %d loss 0.1234", step)


def trainer(folder: Path) -> None:
    """Trains, and logs each step."""
    logging.basicConfig(stream=(folder / _PIPE).open("w"), level=logging.DEBUG)
    gpu = Gpu()
    threading.Thread(target=report_telemetry, name="telemetry", daemon=True).start()
    lifecycle.announce("ready")
    for step in logged_steps(folder):
        gpu.step()
        report_step(step)


def make(situation: Situation) -> None:
    """Only the trainer is traced."""
    os.mkfifo(situation.folder / _PIPE)
    situation.start("shipper")
    situation.start("trainer")
    situation.record("trainer")


EXPECTED = Fault(
    answer="""the training thread waits at report_step for the lock of the log's handler, held by its thread telemetry
    at dump_counters, which waits in write() for log-shipper [<shipper>] to read (lock-contention or ipc-bound; both
    thread and reader are right). Wrong: unexplained; gil; data-starvation; sleep-in-loop; silence as "no work
    requested"; a lock without a word of the pipe's reader or of who holds it.""",
    wanted=(
        r"^(?:lock-contention|ipc-bound):",
        r"<shipper>|log-shipper|telemetry",
        at("dump_counters", "report_telemetry", "report_step"),
    ),
    never=(r"^(?:unexplained|gil|data-starvation|sleep-in-loop|host-bound|gpu-slower|host-hang):", r"DataLoader\("),
)

if __name__ == "__main__":
    play({"shipper": shipper, "trainer": trainer})
