"""Runs a scenario on a real GPU: a loop of PyTorch or CuPy, in a Python that has one of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingero.demo.stage import LIFE_S, LiveRun
from ingero.demo.workloads import gpu_train
from ingero.demo.workloads.host_knobs import HostKnobs
from ingero.demo.workloads.program import Program

_BATCH_BYTES = 1 << 20
_COPIED_BYTES = 64 << 20
_PYTHON_VARIABLES = ("PYTHONHOME", "PYTHONPATH")  # of the agent's Python, not of this one


class GpuRun(LiveRun):
    """Multiplies matrices: 150 launches, a copy and one sync per step."""

    def start(self, *, gate: Path | None, copied_bytes: int) -> Program:
        """Starts a process on GPU 0."""
        command = [str(self.python), gpu_train.__file__, "--seconds", str(LIFE_S), "--knob", str(self.host_knobs)]
        command += ["--nbytes", str(copied_bytes or _BATCH_BYTES), *(("--gate", str(gate)) if gate else ())]
        variables = {name: value for name, value in os.environ.items() if name not in _PYTHON_VARIABLES}
        return Program(command, environment=variables)

    @contextmanager
    def slow_copies(self) -> Iterator[None]:
        """Each step copies more, from memory that is not pinned."""
        knobs = HostKnobs(self.host_knobs)
        before = knobs.change(copy_bytes=_COPIED_BYTES)
        self._say(f"each step copies {_COPIED_BYTES >> 20} MiB more, from unpinned memory")
        try:
            with self.in_effect():
                yield
        finally:
            knobs.write(before)

    @contextmanager
    def slow_first_use(self) -> Iterator[None]:
        """Changes nothing: a real driver is slow at first use anyway."""
        yield
