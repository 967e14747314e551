"""The CPU that other programs used during a run, which may explain its findings."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ingero.demo.faults import cgroups

MAX_OTHERS = 0.05  # of all CPUs; a single busy process of another job takes 0.5 of two
# cpu.shares and cpu.weight, 16 times the usual ones. With the highest, 256 times, the kernel's own threads did not run
# where programs of the group took all CPUs: a probe was detached after five minutes, and its agent was unkillable.
_FAVOR_V1, _FAVOR_V2 = 16_384, 1_600
_STEAL = 7  # of the fields of /proc/stat, after user, nice and system
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds of the whole machine and of this process's family, ended and waited for, until a moment.

    What the hypervisor gave to other machines (stolen_s) counts as used by others.
    """

    at_s: float
    machine_s: float
    own_s: float
    stolen_s: float

    @classmethod
    def now(cls) -> Usage:
        """Until now."""
        fields = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        used = sum(fields[:3]) + fields[_STEAL]
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        own = sum(one.ru_utime + one.ru_stime for one in map(resource.getrusage, kinds))
        return cls(time.monotonic(), used / _TICKS_PER_S, own, fields[_STEAL] / _TICKS_PER_S)

    def others_since(self, before: Usage) -> float:
        """The share of all CPUs that others used; our children must have ended."""
        cpus = (os.cpu_count() or 1) * max(self.at_s - before.at_s, 1e-9)
        return max(0.0, (self.machine_s - before.machine_s - self.own_s + before.own_s) / cpus)


@contextmanager
def favored() -> Iterator[None]:
    """Let this process and what it starts have the CPUs before everybody else: for machines that others use, too.

    Raises:
        FaultError: there is no cpu controller here.
    """
    with cgroups.group("cpu", "bench") as group:
        group.set_cpu_weight(_FAVOR_V2 if group.is_v2 else _FAVOR_V1)
        group.add(os.getpid())
        yield
