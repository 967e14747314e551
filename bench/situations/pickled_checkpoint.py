"""An asynchronous checkpoint: a thread pickles the optimizer's state, and has the interpreter for as long as it takes.

The pickler is C and never lets go of the lock. Then the thread serializes a quarter of a million objects about once a
second, and writes them with fsync (without the lock, beside the training). The training thread stands still while the
pickler runs, not while the disk does.

Source: https://github.com/pytorch/pytorch/pull/147039
"""

from __future__ import annotations

import gc
import os
import pickle
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

_ENTRIES = 250_000


def optimizer_state() -> dict[str, tuple[int, float, list[int]]]:
    """Many small objects, as of a state dict with metadata, an index of a dataset, a tokenizer."""
    return {f"exp_avg.{number}": (number, number / 3, [number]) for number in range(_ENTRIES)}


def serialize(state: object) -> bytes:
    """One call of C code."""
    return pickle.dumps(state, protocol=5)


def write_out(path: Path, content: bytes) -> None:
    """Writes and waits for the disk."""
    with path.open("wb", buffering=0) as file:
        file.write(content)
        os.fsync(file.fileno())


def save_always(folder: Path, state: object) -> None:
    """The thread that saves in the background."""
    naming.name_this_thread("ckpt-writer")
    while True:
        if has_begun(folder):
            write_out(folder / "checkpoint", serialize(state))
        time.sleep(0.4)


def trainer(folder: Path) -> None:
    """Trains beside it."""
    state = optimizer_state()
    gc.freeze()  # the cost of a collection is no part of this
    gpu = Gpu()
    threading.Thread(target=save_always, args=(folder, state), daemon=True).start()
    lifecycle.announce("ready")
    for _ in logged_steps(folder):
        gpu.step()


def make(situation: Situation) -> None:
    """One program."""
    situation.start("trainer")
    situation.record("trainer")


EXPECTED = Fault(
    answer="""gil: the training thread waits for the interpreter lock, held by its thread ckpt-writer at serialize
    (pickle.dumps). Wrong: block-io (only the other thread waits for the disk), periodic-spike or sleep-in-loop (its
    waits end by 5 ms timers), garbage-collection, host-bound or lock-contention.""",
    wanted=(r"^gil:", r"ckpt-writer", at("serialize")),
    never=(
        r"^(?:block-io|periodic-spike|sleep-in-loop|garbage-collection|host-bound|lock-contention|unexplained):",
        at("write_out"),
    ),
    slower=1.1,
)

if __name__ == "__main__":
    play({"trainer": trainer})
