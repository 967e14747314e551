"""What the programs share: their roles, a step on the simulated GPU, a log of steps, and when the situation begins."""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ingero.demo.workloads import train_options
from ingero.demo.workloads.loop import Log
from ingero.demo.workloads.minitorch import cuda, naming, runtime
from ingero.demo.workloads.minitorch.data import Batch
from ingero.demo.workloads.minitorch.data.arena import Arena
from ingero.demo.workloads.train import Trainer

STEPS, BEGUN = "steps", "begun"  # files in the folder: the log, and that the situation is there
BATCH_BYTES = 256 << 10
_LIFE_S = 180  # of a program that waits for what never comes: an agent may take a minute to start
_OPTIONS = ("--layers=1", "--us=1000", "--workers=0", "--cpu-ms=0", f"--nbytes={BATCH_BYTES}")


def play(roles: Mapping[str, Callable[..., None]]) -> None:
    """Runs the role that the command line names: --role ROLE FOLDER [WORD ...]."""
    role, folder, *words = sys.argv[2:]
    naming.die_with_parent()
    signal.alarm(_LIFE_S)
    roles[role](Path(folder), *words)


def has_begun(folder: Path) -> bool:
    """Whether the situation is there by now."""
    return (folder / BEGUN).exists()


def logged_steps(folder: Path) -> Iterator[int]:
    """The numbers of steps without end; each step is logged when the next number is asked for."""
    with (folder / STEPS).open("w", buffering=1) as out:
        log = Log(out)
        for step in itertools.count():
            log.begin()
            yield step
            log.end(step=step)


def compute(seconds: float) -> int:
    """Pure Python for so much CPU time of this thread, whatever else runs."""
    end = time.thread_time() + seconds
    value = 0
    while time.thread_time() < end:
        for number in range(200):
            value += number * number
    return value


class Gpu:
    """A training step of about 12.5 ms on the simulated GPU, in 37 launches and copies, with one sync at its end."""

    def __init__(self, device: int = 0) -> None:
        runtime.library()
        self._arena = Arena(1, BATCH_BYTES)
        cuda.init(device)
        self._arena.register()
        self._trainer = Trainer(train_options.parser().parse_args(_OPTIONS))
        self._batch = Batch(index=0, pointer=self._arena.address(0), nbytes=BATCH_BYTES, is_pinned=False)

    def step(self, content: bytes = b"") -> None:
        """Trains one step on these bytes, and reads its loss."""
        if content:
            self._arena.write(0, content)
        self._trainer.read_loss(self._trainer.train_step(self._batch))
