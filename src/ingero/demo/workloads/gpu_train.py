"""A training loop on a real GPU, with PyTorch or CuPy. It runs alone, in a Python that need not have ingero.

--knob FILE: lines of `name value` as host_knobs.py writes them; of these it knows stall_ms, stall_every and copy_bytes.
"""

import argparse
import importlib
import importlib.util
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

LAUNCHES = 150
SIDE = 512
FRAMEWORKS = ("torch", "cupy")


class TorchLoop:
    """The work of one step with PyTorch."""

    def __init__(self, size_bytes: int) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.matrix = self.torch.rand(SIDE, SIDE, device="cuda")
        self.batch = self.torch.zeros(size_bytes, dtype=self.torch.uint8)

    def copy(self, size_bytes: int) -> None:
        """Copies to the device, from memory that is not pinned."""
        if size_bytes > len(self.batch):
            self.batch = self.torch.zeros(size_bytes, dtype=self.torch.uint8)
        self.batch[:size_bytes].cuda()

    def compute(self) -> None:
        """Launches, then waits for the result."""
        total = self.matrix @ self.matrix
        for _ in range(LAUNCHES):
            total = self.torch.tanh(total)
        total.sum().item()


class CupyLoop:
    """The work of one step with CuPy."""

    def __init__(self, size_bytes: int) -> None:
        self.cupy: Any = importlib.import_module("cupy")
        self.numpy: Any = importlib.import_module("numpy")
        self.matrix = self.cupy.random.rand(SIDE, SIDE, dtype=self.cupy.float32)
        self.batch = self.numpy.zeros(size_bytes, self.numpy.uint8)

    def copy(self, size_bytes: int) -> None:
        """Copies to the device, from memory that is not pinned."""
        if size_bytes > len(self.batch):
            self.batch = self.numpy.zeros(size_bytes, self.numpy.uint8)
        self.cupy.asarray(self.batch[:size_bytes])

    def compute(self) -> None:
        """Launches, then waits for the result."""
        total = self.matrix @ self.matrix
        for _ in range(LAUNCHES):
            total = self.cupy.tanh(total)
        float(total.sum())


def knobs(path: Path) -> dict[str, float]:
    """The numbers in the file, by name."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return {}
    return {name: float(value) for name, value in (line.split() for line in lines)}


def stall(state: dict[str, float], step: int) -> None:
    """Sleep in the training thread if the knobs say so, as a slow callback would."""
    every = int(state.get("stall_every", 1))
    if state.get("stall_ms") and step % every == every // 2:
        time.sleep(state["stall_ms"] / 1000)


def main() -> None:
    """Run until --seconds are over; print `loaded PID` and `ready PID` on standard error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--nbytes", type=int, required=True)
    parser.add_argument("--knob", type=Path, required=True)
    parser.add_argument("--gate", type=Path)
    options = parser.parse_args()
    print("loaded", os.getpid(), file=sys.stderr, flush=True)
    while options.gate and not options.gate.exists():
        time.sleep(0.005)
    loop = (TorchLoop if importlib.util.find_spec("torch") else CupyLoop)(options.nbytes)
    end = time.monotonic() + options.seconds
    for step in itertools.count():
        if step == 1:
            print("ready", os.getpid(), file=sys.stderr, flush=True)
        state = knobs(options.knob)
        stall(state, step)
        loop.copy(options.nbytes + int(state.get("copy_bytes", 0)))
        loop.compute()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
