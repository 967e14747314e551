"""Disturbances that only the bench needs: several at once, in pulses, or none at all."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ingero.demo.faults.model import FaultError, Injection, Recipe, Stage, Target
from ingero.demo.faults.processes import tree

_PULSE_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget(Target):
    """A running workload of the bench; `traffic_pid` sends its requests, 0 where there are none."""

    traffic_pid: int = 0


class Nothing(Recipe):
    """Nothing happens: the workload alone is the point."""

    @contextmanager
    def apply(self, target: Target) -> Iterator[Injection]:
        """Do nothing."""
        del target
        yield Injection()


class Staged(Recipe):
    """A recipe whose preparation is wanted without its effect: the control of a pair."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def requires(self) -> str | None:
        """As the recipe."""
        return self._recipe.requires()

    def stage(self, scratch: Path) -> AbstractContextManager[Stage]:
        """As the recipe."""
        return self._recipe.stage(scratch)

    @contextmanager
    def apply(self, target: Target) -> Iterator[Injection]:
        """Do nothing."""
        del target
        yield Injection()


class Together(Recipe):
    """Several recipes at once, as one disturbance."""

    def __init__(self, *recipes: Recipe) -> None:
        self._recipes = recipes

    def requires(self) -> str | None:
        """The first reason."""
        return next((reason for one in self._recipes if (reason := one.requires())), None)

    @contextmanager
    def stage(self, scratch: Path) -> Iterator[Stage]:
        """All of them, for one workload."""
        with ExitStack() as stack:
            stages = [stack.enter_context(one.stage(scratch)) for one in self._recipes]
            arguments = tuple(argument for stage in stages for argument in stage.arguments)
            groups = tuple(group for stage in stages for group in stage.cgroups)
            yield Stage(arguments=arguments, cgroups=groups)

    @contextmanager
    def apply(self, target: Target) -> Iterator[Injection]:
        """All of them."""
        with ExitStack() as stack:
            made = [stack.enter_context(one.apply(target)) for one in self._recipes]
            yield Injection(culprits=tuple(pid for one in made for pid in one.culprits))


class Pulses(Recipe):
    """The process is stopped for a share of every second, as by a sampler that freezes what it looks at."""

    def __init__(self, share: float, *, child: bool = False) -> None:
        self.share = share
        self.child = child

    @contextmanager
    def apply(self, target: Target) -> Iterator[Injection]:
        """SIGSTOP and SIGCONT in turn."""
        pid = tree(target.pid)[1:][-1] if self.child else target.pid
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
    def apply(self, target: Target) -> Iterator[Injection]:
        """SIGSTOP, then SIGCONT."""
        pid = self._pid(target)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield Injection(culprits=(os.getpid(),))
        finally:
            os.kill(pid, signal.SIGCONT)

    def _pid(self, target: Target) -> int:
        if self.rank is not None:
            children = Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().split()
            return int(children[self.rank])
        if isinstance(target, RunTarget) and target.traffic_pid:
            return target.traffic_pid
        raise FaultError("there is neither a rank nor traffic to stop")


class WithArguments(Recipe):
    """A workload that must be started with these, and to which nothing happens."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    def stage(self, scratch: Path) -> AbstractContextManager[Stage]:
        """Start it so; {scratch} stands for a folder on a disk."""
        return nullcontext(Stage(arguments=tuple(one.format(scratch=scratch) for one in self._arguments)))

    @contextmanager
    def apply(self, target: Target) -> Iterator[Injection]:
        """Do nothing."""
        del target
        yield Injection()
