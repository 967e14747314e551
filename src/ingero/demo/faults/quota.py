"""The fault of a CPU limit: the cgroup's quota runs out in every period."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ingero.demo.faults import cgroups
from ingero.demo.faults.model import Injection, Recipe, Workload
from ingero.demo.faults.processes import tree


class CfsQuota(Recipe):
    """`quota_us` of CPU time in each 100 ms for trainer and workers together."""

    def __init__(self, *, quota_us: int = 25_000) -> None:
        self.quota_us = quota_us

    def requires(self) -> str | None:
        """A cgroup with the cpu controller."""
        return cgroups.missing("cpu")

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Move the whole tree into a group with that quota, and back."""
        weight = cgroups.group_of(workload.pid, "cpu").cpu_weight()
        with cgroups.group("cpu", "quota") as group, cgroups.moved(tree(workload.pid), group, "cpu"):
            group.set_cpu_weight(weight)
            group.set_cpu_limit(self.quota_us)
            try:
                yield Injection(cgroups=(group.path,))
            finally:
                group.set_cpu_limit(cgroups.UNLIMITED)
