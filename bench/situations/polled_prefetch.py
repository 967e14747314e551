"""A prefetch thread of the program's own, and a loop that asks every 2 ms whether a batch is there (time.sleep).

Such loaders are everywhere: a deque, a thread, `while not batches: time.sleep(0.002)`. Then decoding takes 35 ms
(without the interpreter lock), and each step asks some ten times before there is a batch.

Source: https://github.com/syang1993/gst-tacotron/issues/50
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from bench.situations.expected import Fault, at
from bench.situations.program import Gpu, has_begun, logged_steps, play
from ingero.demo.workloads import lifecycle
from ingero.demo.workloads.minitorch import naming

if TYPE_CHECKING:
    from bench.situations.situation import Situation

_AHEAD = 4
_ROUNDS_PER_MS = 4000  # of hashing


def decode_item(milliseconds: float) -> None:
    """Decodes in native code, as image libraries do: the interpreter is free meanwhile."""
    hashlib.pbkdf2_hmac("sha256", b"image", b"salt", int(milliseconds * _ROUNDS_PER_MS))


def prefetch(batches: deque[int], folder: Path) -> None:
    """The thread that keeps some batches ahead."""
    naming.name_this_thread("prefetch")
    while True:
        while len(batches) >= _AHEAD:
            time.sleep(0.002)
        decode_item(35 if has_begun(folder) else 4)
        batches.append(1)


def wait_for_batch(batches: deque[int]) -> int:
    """Asks again and again."""
    while not batches:
        time.sleep(0.002)
    return batches.popleft()


def trainer(folder: Path) -> None:
    """Trains on what the thread makes."""
    batches: deque[int] = deque()
    gpu = Gpu()
    threading.Thread(target=prefetch, args=(batches, folder), name="prefetch", daemon=True).start()
    lifecycle.announce("ready")
    for _ in logged_steps(folder):
        wait_for_batch(batches)
        gpu.step()


def make(situation: Situation) -> None:
    """One program."""
    situation.start("trainer")
    situation.record("trainer")


EXPECTED = Fault(
    answer="""data-starvation: the loop waits (wait_for_batch, polling on a timer) for its own thread prefetch, which
    computes in decode_item. Wrong: silence, because sleeps of varying number are taken for a server that polls for
    work; sleep-in-loop ("remove the sleep from the step"), which would make it spin and gain nothing; host-bound at
    wait_for_batch.""",
    wanted=(r"^data-starvation:", rf"{at('decode_item')}|prefetch"),
    never=(
        r"^(?:sleep-in-loop|host-bound|gil|lock-contention|gpu-slower|unexplained):",
        r"remove the sleep",
    ),
)

if __name__ == "__main__":
    play({"trainer": trainer})
