"""Disturbances that only the bench needs: several at once, in pulses, or none at all."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ingero.demo.faults.model import FaultError, Injection, Recipe, Workload, WorkloadSetup
from ingero.demo.faults.processes import tree

_PULSE_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchWorkload(Workload):
    """A running workload of the bench; `traffic_pid` sends its requests, 0 where there are none."""

    traffic_pid: int = 0


class Nothing(Recipe):
    """A recipe that does nothing, for runs of the workload alone."""

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Do nothing."""
        del workload
        yield Injection()


class PrepareOnly(Recipe):
    """A recipe that prepares the workload but applies no fault: the control of a pair."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def requires(self) -> str | None:
        """As the recipe."""
        return self._recipe.requires()

    def prepare(self, scratch: Path) -> AbstractContextManager[WorkloadSetup]:
        """As the recipe."""
        return self._recipe.prepare(scratch)

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Do nothing."""
        del workload
        yield Injection()


class Together(Recipe):
    """Several recipes at once, as one disturbance."""

    def __init__(self, *recipes: Recipe) -> None:
        self._recipes = recipes

    def requires(self) -> str | None:
        """The first reason."""
        return next((reason for one in self._recipes if (reason := one.requires())), None)

    @contextmanager
    def prepare(self, scratch: Path) -> Iterator[WorkloadSetup]:
        """Prepare all recipes, for one workload."""
        with ExitStack() as stack:
            setups = [stack.enter_context(one.prepare(scratch)) for one in self._recipes]
            arguments = tuple(argument for setup in setups for argument in setup.arguments)
            groups = tuple(group for setup in setups for group in setup.cgroups)
            yield WorkloadSetup(arguments=arguments, cgroups=groups)

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Apply all recipes."""
        with ExitStack() as stack:
            made = [stack.enter_context(one.apply(workload)) for one in self._recipes]
            yield Injection(culprits=tuple(pid for one in made for pid in one.culprits))


class Pulses(Recipe):
    """The process is stopped for a share of every second, as by a sampler that freezes what it looks at."""

    def __init__(self, share: float, *, child: bool = False) -> None:
        self.share = share
        self.child = child

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """SIGSTOP and SIGCONT in turn."""
        pid = tree(workload.pid)[1:][-1] if self.child else workload.pid
        ended = threading.Event()
        thread = threading.Thread(target=self._run, args=(pid, ended), daemon=True)
        thread.start()
        try:
            yield Injection(culprits=(os.getpid(),))
        finally:
            ended.set()
            thread.join()
            os.kill(pid, signal.SIGCONT)

    def _run(self, pid: int, ended: threading.Event) -> None:
        while not ended.is_set():
            os.kill(pid, signal.SIGSTOP)
            ended.wait(self.share * _PULSE_PERIOD_S)
            if self.share < 1:
                os.kill(pid, signal.SIGCONT)
                ended.wait((1 - self.share) * _PULSE_PERIOD_S)


class Stopped(Recipe):
    """A rank (or the sender of requests) is stopped for as long as the with-block lasts."""

    def __init__(self, *, rank: int | None = None) -> None:
        self.rank = rank

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """SIGSTOP, then SIGCONT."""
        pid = self._pid(workload)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield Injection(culprits=(os.getpid(),))
        finally:
            os.kill(pid, signal.SIGCONT)

    def _pid(self, workload: Workload) -> int:
        if self.rank is not None:
            children = Path(f"/proc/{workload.pid}/task/{workload.pid}/children").read_text().split()
            return int(children[self.rank])
        if isinstance(workload, BenchWorkload) and workload.traffic_pid:
            return workload.traffic_pid
        raise FaultError("there is neither a rank nor traffic to stop")


class WithArguments(Recipe):
    """A recipe that starts the workload with these arguments and applies no fault."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    def prepare(self, scratch: Path) -> AbstractContextManager[WorkloadSetup]:
        """Start the workload with the arguments; {scratch} stands for a folder on a disk."""
        return nullcontext(WorkloadSetup(arguments=tuple(one.format(scratch=scratch) for one in self._arguments)))

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Do nothing."""
        del workload
        yield Injection()
