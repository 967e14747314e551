"""Scheduling settings of a thread: nice value, policy, and CPU affinity.

Sources: sched(7), sched_setscheduler(2).
"""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import dataclass
from functools import lru_cache

from ingero.units import format_cpu_list

_RESET_ON_FORK = 0x40000000  # SCHED_RESET_ON_FORK, linux/sched.h
_POLICIES = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline", 7: "ext"}
_REAL_TIME = ("fifo", "rr")


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """Settings of one thread. rt_priority: 1 to 99 for fifo and rr, else 0; cpus_allowed: a list such as 0-3,8."""

    nice: int
    policy: str
    rt_priority: int
    cpus_allowed: str


def read_scheduling(tid: int) -> SchedulingPolicy | None:
    """Reads the settings of a thread (three or four system calls); None if it has ended."""
    try:
        number = os.sched_getscheduler(tid) & ~_RESET_ON_FORK
        policy = _POLICIES.get(number, str(number))
        return SchedulingPolicy(
            nice=os.getpriority(os.PRIO_PROCESS, tid),
            policy=policy,
            rt_priority=os.sched_getparam(tid).sched_priority if policy in _REAL_TIME else 0,
            cpus_allowed=_cpu_list(frozenset(os.sched_getaffinity(tid))),
        )
    except OSError:
        return None


@lru_cache(maxsize=256)
def _cpu_list(cpus: Set[int]) -> str:
    return format_cpu_list(cpus)
