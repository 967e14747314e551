"""Faults of memory: a limit that is too tight, an OOM kill next door, a storm of page faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingero.demo.faults import cgroups
from ingero.demo.faults.disk import evict, write_data
from ingero.demo.faults.model import FaultError, Injection, Recipe, Workload, WorkloadSetup
from ingero.demo.faults.processes import cpu_count, disturbers, need_same_session

DATA_BYTES = 256 << 20
MIB = 1 << 20


class MemoryLimit(Recipe):
    """The limit of the workload's memory cgroup is cut while it reads files through the page cache.

    `mem_reclaim` leaves it a part of its page cache, so that every read reclaims; `mem_thrash` leaves it hardly
    more than its anonymous memory, so that its own code is evicted and read again.
    """

    def __init__(self, *, thrash: bool) -> None:
        self.thrash = thrash
        self._group: cgroups.Group | None = None

    def requires(self) -> str | None:
        """A cgroup with the memory controller."""
        return cgroups.missing("memory")

    @contextmanager
    def prepare(self, scratch: Path) -> Iterator[WorkloadSetup]:
        """Start the workload in the group: memory stays charged to where it was first used."""
        data = write_data(scratch, DATA_BYTES)
        evict(data)
        reading = ("--data", str(data), "--buffered", "--nbytes", str((4 if self.thrash else 1) * MIB))
        with cgroups.group("memory", "limit") as group:
            self._group = group
            yield WorkloadSetup(
                arguments=(*reading, "--prefetch", "1") if self.thrash else reading, cgroups=(group.path,)
            )

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Cut the limit, and lift it."""
        del workload
        if self._group is None:
            raise FaultError("the workload does not run in the fault's cgroup", hint="start it as prepare() says")
        self._cut(self._group)
        try:
            yield Injection(cgroups=(self._group.path,))
        finally:
            self._group.set_memory_limit(cgroups.UNLIMITED)

    def _cut(self, group: cgroups.Group) -> None:
        wanted = max(40 * MIB, group.memory_bytes() // 4)
        if self.thrash:
            wanted = group.anonymous_bytes() + 6 * MIB
        for extra in range(0, 64 * MIB, 2 * MIB):
            try:
                group.set_memory_limit(wanted + extra)
            except OSError:
                continue  # EBUSY: so little cannot be reached
            return
        raise FaultError(f"the limit of {group.path} cannot be cut to {wanted} bytes")


class OomKill(Recipe):
    """A neighbor grows beyond its own memory limit and is killed; the workload only watches."""

    def __init__(self, *, culprit: str = "eater", limit_bytes: int = 48 * MIB) -> None:
        self.culprit = culprit
        self.limit_bytes = limit_bytes

    def requires(self) -> str | None:
        """A cgroup with the memory controller."""
        return cgroups.missing("memory")

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Start the neighbor; it may use twice its limit if nobody kills it."""
        del workload
        with cgroups.group("memory", "oom") as group:
            group.set_memory_limit(self.limit_bytes)
            size = [[str(2 * self.limit_bytes)]]
            with disturbers("eater", size, name=self.culprit, cgroups=[group.path]) as eaters:
                yield Injection(culprits=tuple(e.pid for e in eaters), cgroups=(group.path,))


class PageFaultStorm(Recipe):
    """Processes that touch and return memory as fast as they can, two for each CPU."""

    def __init__(self, *, culprit: str = "faulter", per_cpu: int = 2) -> None:
        self.culprit = culprit
        self.per_cpu = per_cpu

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Run them."""
        need_same_session(workload.pid)
        with disturbers("faulter", [()] * (self.per_cpu * cpu_count()), name=self.culprit) as faulters:
            yield Injection(culprits=tuple(f.pid for f in faulters))
