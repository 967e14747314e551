"""A training loop whose data workers are made anew for each pass over the data, as without persistent_workers.

usage: new_workers_program.py GATE OUT SECONDS PASS_STEPS START_MS KEEP: START_MS is what a worker needs before its
first item (imports, opening files); with KEEP=1 the workers of the first pass stay. OUT has a line for each step, as
that of `train`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ingero.demo.workloads import lifecycle, train_options
from ingero.demo.workloads.dataset import ImageDataset
from ingero.demo.workloads.loop import Log
from ingero.demo.workloads.minitorch import cuda, runtime
from ingero.demo.workloads.minitorch.data import DataLoader
from ingero.demo.workloads.train import Trainer


class SlowToStart(ImageDataset):
    """The first item of each worker takes longer."""

    def __init__(self, nbytes: int, *, cpu_ms: float, start_ms: float) -> None:
        super().__init__(nbytes, cpu_ms=cpu_ms)
        self._start_ms = start_ms

    def read(self, index: int) -> bytes:
        """Reads the encoded bytes of an item, like ImageDataset.read."""
        time.sleep(self._start_ms / 1e3)
        self._start_ms = 0.0
        return super().read(index)


def main(gate: Path, out: Path, seconds: float, pass_steps: int, start_ms: float, *, keeps: bool) -> None:
    """Trains."""
    options = train_options.parser().parse_args(["--layers", "2", "--us", "300", "--workers", "1"])
    runtime.library()
    dataset = SlowToStart(options.nbytes, cpu_ms=1.0, start_ms=start_ms)
    with lifecycle.until_stopped(), out.open("w", buffering=1) as file:
        lifecycle.announce("loaded")
        lifecycle.wait_for(gate)
        loader = DataLoader(dataset, num_workers=1)
        cuda.init(0)
        trainer, log, step = Trainer(options), Log(file), 0
        batches = iter(loader)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            log.begin()
            if not keeps and step and step % pass_steps == 0:
                loader.close()
                loader = DataLoader(dataset, num_workers=1)
                batches = iter(loader)
            batch = next(batches)
            data_ns = time.monotonic_ns() - log.began_ns
            trainer.read_loss(trainer.train_step(batch))
            log.end(step=step, data_ns=data_ns)
            step += 1
        loader.close()


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        float(sys.argv[3]),
        int(sys.argv[4]),
        float(sys.argv[5]),
        keeps=sys.argv[6] == "1",
    )
