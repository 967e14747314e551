"""Faults that take CPU time from the workload: hogs, priorities, affinity."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from ingero.demo.faults.model import Injection, Recipe, Workload, WorkloadSetup
from ingero.demo.faults.processes import cpu_count, disturbers, need_same_session, threads

LOWEST_PRIORITY = 19


class CpuHog(Recipe):
    """Spinning processes, two for each CPU; `duty` (0-1) of the time, on `cpus` (default: all).

    is_idle: they run under SCHED_IDLE, only on a CPU that nothing else wants.
    """

    def __init__(
        self,
        *,
        culprit: str = "hog",
        per_cpu: float = 2,
        nice: int = 0,
        duty: float = 1.0,
        cpus: set[int] | None = None,
        cpu_ms: float | None = None,
        is_idle: bool = False,
    ) -> None:
        self.culprit = culprit
        self.count = max(1, round(per_cpu * cpu_count()))
        self.nice = nice
        self.duty = duty
        self.cpus = cpus
        self.is_idle = is_idle
        self.arguments = () if cpu_ms is None else ("--cpu-ms", str(cpu_ms))

    def prepare(self, scratch: Path) -> AbstractContextManager[WorkloadSetup]:
        """Give the workers more to compute, where that is the point."""
        del scratch
        return nullcontext(WorkloadSetup(arguments=self.arguments))

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Run the hogs."""
        need_same_session(workload.pid)
        with disturbers("hog", [[str(100 * self.duty)]] * self.count, name=self.culprit) as hogs:
            for hog in hogs:
                os.setpriority(os.PRIO_PROCESS, hog.pid, self.nice)
                if self.is_idle:
                    os.sched_setscheduler(hog.pid, os.SCHED_IDLE, os.sched_param(0))
                if self.cpus:
                    os.sched_setaffinity(hog.pid, self.cpus)
            yield Injection(culprits=tuple(hog.pid for hog in hogs))


class NiceTrainer(Recipe):
    """The workload itself gets the lowest priority, beside one hog for each CPU."""

    def __init__(self, *, culprit: str = "hog") -> None:
        self.hogs = CpuHog(culprit=culprit, per_cpu=1)

    def requires(self) -> str | None:
        """Only root can raise a priority again."""
        return None if os.geteuid() == 0 else "raising a priority again needs root"

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Lower the priority of every thread."""
        before = {tid: os.getpriority(os.PRIO_PROCESS, tid) for tid in threads(workload.pid)}
        with self.hogs.apply(workload) as injection:
            _set_priorities(dict.fromkeys(before, LOWEST_PRIORITY))
            try:
                yield injection
            finally:
                # Threads that were born meanwhile have inherited the low priority of the thread that made them.
                original = os.getpriority(os.PRIO_PROCESS, 0)
                _set_priorities({tid: before.get(tid, original) for tid in threads(workload.pid)})


class PinOneCpu(Recipe):
    """Pins all threads and workers to one CPU, while the others are idle."""

    def requires(self) -> str | None:
        """With one CPU there is nothing to take away."""
        return None if cpu_count() > 1 else "this host has only one CPU"

    def prepare(self, scratch: Path) -> AbstractContextManager[WorkloadSetup]:
        """A worker that nearly fills a CPU of its own."""
        del scratch
        return nullcontext(WorkloadSetup(arguments=("--cpu-ms", "6")))

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Restrict the masks; restore each thread's own."""
        before = {tid: os.sched_getaffinity(tid) for tid in threads(workload.pid)}
        original = before[workload.pid]
        _set_affinities({tid: {min(original)} for tid in before})
        try:
            yield Injection()
        finally:
            _set_affinities({tid: before.get(tid, original) for tid in threads(workload.pid)})


def _set_priorities(wanted: dict[int, int]) -> None:
    for tid, priority in wanted.items():
        with suppress(ProcessLookupError):  # the thread ended meanwhile
            os.setpriority(os.PRIO_PROCESS, tid, priority)


def _set_affinities(wanted: dict[int, set[int]]) -> None:
    for tid, mask in wanted.items():
        with suppress(ProcessLookupError):  # the thread ended meanwhile
            os.sched_setaffinity(tid, mask)
