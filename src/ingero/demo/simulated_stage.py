"""Runs a scenario on the simulated GPU: the CUDA libraries are simulated, the probes are real."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingero.demo.gpusim.build import build, environment
from ingero.demo.gpusim.knobs import Knobs
from ingero.demo.stage import LIFE_S, LiveRun
from ingero.demo.workloads.program import Program

_SLOW_BUS_GBPS = 4.0
_FIRST_USE_US = 40_000.0  # of about one launch a step; all others take 4


class SimulatedRun(LiveRun):
    """Trains a small transformer: a data-loading worker, 150 launches and one sync per step, a copy where it waits."""

    def start(self, *, gate: Path | None, copied_bytes: int) -> Program:
        """Starts a process; all processes of one scenario share the simulated GPUs."""
        # the runtime by its path: a release's Python is started so that it does not heed LD_LIBRARY_PATH (ld.so(8))
        variables = {**os.environ, **environment(build(), ctl=self.knobs, sched="block", runtime="12")}
        arguments: list[object] = ["--seconds", LIFE_S, "--workers", 1, "--knob", self.host_knobs, "--out", os.devnull]
        arguments += ["--nbytes", copied_bytes, "--blocking-copies"] if copied_bytes else []
        return Program.module("train", *arguments, *(("--gate", gate) if gate else ()), environment=variables)

    def driver_environment(self) -> dict[str, str]:
        """The variables with which the recorder finds the simulated NVML, which lists the processes on each GPU."""
        return environment(build(), ctl=self.knobs)

    @contextmanager
    def slow_copies(self) -> Iterator[None]:
        """Makes the bus slower."""
        self._say(f"the bus carries {_SLOW_BUS_GBPS:.0f} GB/s instead of 12")
        with self._knob("pcie_gbps", _SLOW_BUS_GBPS), self.in_effect():
            yield

    @contextmanager
    def slow_first_use(self) -> Iterator[None]:
        """Makes each step launch a new kernel, which has to be loaded and compiled."""
        with self._knob("first_launch_us", _FIRST_USE_US):
            yield

    @contextmanager
    def _knob(self, name: str, value: float) -> Iterator[None]:
        with Knobs(self.knobs) as knobs:
            before = getattr(knobs, name)
            setattr(knobs, name, value)
            try:
                yield
            finally:
                setattr(knobs, name, before)
