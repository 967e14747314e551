"""Metrics go through a pipe to a child of the trainer that ships them: wandb's service process, a logging process.

Then the child needs 30 ms to ship a record. The pipe fills, and the trainer blocks in its write: once a step, for as
long as the child needs. What it waits for is room for its log, not input data.

Source: https://github.com/wandb/wandb/issues/8666
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Fault, at
from bench.situations.program import Gpu, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_HISTOGRAM = bytes(8000)


def upload(folder: Path) -> None:
    """Waits for the server that keeps the metrics."""
    time.sleep(0.030 if has_begun(folder) else 0.0002)


def ship(records: Connection, folder: Path) -> None:
    """The child: takes a record, sends it on."""
    naming.die_with_parent()
    naming.name_this_thread("wandb-service")
    while True:
        records.recv()
        upload(folder)


def log_metrics(sender: Connection, step: int) -> None:
    """Hands a record to the child, as logging libraries do."""
    sender.send({"step": step, "loss": 0.1, "gradients": _HISTOGRAM})


def trainer(folder: Path) -> None:
    """Trains, and logs each step."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    multiprocessing.get_context("fork").Process(target=ship, args=(receiver, folder), daemon=True).start()
    receiver.close()
    gpu = Gpu()
    lifecycle.announce("ready")
    for step in logged_steps(folder):
        gpu.step()
        log_metrics(sender, step)


def make(situation: Situation) -> None:
    """The child belongs to the trainer, and is traced with it."""
    situation.start("trainer")
    situation.name_child("trainer", "shipper")
    situation.record("trainer")


EXPECTED = Fault(
    answer="""ipc-bound: the trainer lost its time in a write (log_metrics) until its child wandb-service [<shipper>]
    had taken it, which slept in upload. Wrong: data-starvation ("waited for input data", more DataLoader workers): the
    child makes no data, it takes records; sleep-in-loop of the trainer; host-bound.""",
    wanted=(r"^ipc-bound:", r"<shipper>|wandb-service", at("log_metrics", "upload")),
    never=(
        r"^(?:data-starvation|sleep-in-loop|host-bound|gpu-slower|unexplained):",
        r"DataLoader\(",
        r"input data",
    ),
)

if __name__ == "__main__":
    play({"trainer": trainer})
