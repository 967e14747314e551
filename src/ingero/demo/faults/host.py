"""Faults inside the workload's own processes: slow storage, a busy interpreter, a stopped process, a slow rank."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from ingero.demo.faults.model import Injection, Recipe, Stage, Target
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
        self._stage = Stage(module=module, arguments=arguments)
        self._rank = rank
        self._values = values

    def stage(self, scratch: Path) -> AbstractContextManager[Stage]:
        """Start the workload with what the knob needs."""
        del scratch
        return nullcontext(self._stage)

    @contextmanager
    def apply(self, target: Target) -> Iterator[Injection]:
        """Turn the knob, and back."""
        path = target.host_knobs if self._rank is None else rank_path(target.host_knobs, self._rank)
        knobs = HostKnobs(path)
        before = knobs.change(**self._values)
        try:
            yield Injection()
        finally:
            knobs.write(before)


class SigStop(Recipe):
    """The training process is stopped, as by a debugger or a container pause, for as long as the with-block lasts."""

    @contextmanager
    def apply(self, target: Target) -> Iterator[Injection]:
        """SIGSTOP, then SIGCONT."""
        os.kill(target.pid, signal.SIGSTOP)
        try:
            yield Injection(culprits=(os.getpid(),))
        finally:
            os.kill(target.pid, signal.SIGCONT)
