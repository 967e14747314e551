"""Faults inside the workload's own processes: slow storage, a busy interpreter, a stopped process, a slow rank."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from ingero.demo.faults.model import Injection, Recipe, Workload, WorkloadSetup
from ingero.demo.workloads.ddp import rank_path
from ingero.demo.workloads.host_knobs import HostKnobs


class Knob(Recipe):
    """A disturbance that the workload reads from its --knob file; of one rank only, where `rank` is given."""

    def __init__(
        self,
        *,
        module: str = "train",
        arguments: tuple[str, ...] = (),
        rank: int | None = None,
        **values: float,
    ) -> None:
        self._setup = WorkloadSetup(module=module, arguments=arguments)
        self._rank = rank
        self._values = values

    def prepare(self, scratch: Path) -> AbstractContextManager[WorkloadSetup]:
        """Start the workload with what the knob needs."""
        del scratch
        return nullcontext(self._setup)

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Turn the knob, and back."""
        path = workload.host_knobs if self._rank is None else rank_path(workload.host_knobs, self._rank)
        knobs = HostKnobs(path)
        before = knobs.change(**self._values)
        try:
            yield Injection()
        finally:
            knobs.write(before)


class SigStop(Recipe):
    """The training process is stopped, as by a debugger or a container pause, for as long as the with-block lasts."""

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """SIGSTOP, then SIGCONT."""
        os.kill(workload.pid, signal.SIGSTOP)
        try:
            yield Injection(culprits=(os.getpid(),))
        finally:
            os.kill(workload.pid, signal.SIGCONT)
