"""Decides which culprits of a second are valid if a CPU quota throttled the affected process.

A kernel that throttles whole groups (before 6.18) leaves throttled threads on the run queue, so who runs meanwhile is
charged for a wait that no departure of theirs would have shortened: 50 to 150 times the true one. Nothing tells the two
apart afterwards, so the culprits of such a second are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ingero.capture.sums.culprits import CulpritTime
from ingero.store.vocabulary import STATES

UNKNOWN_PID = -1
UNKNOWN_NAME = "unknown (CPU quota)"
_RUNQ, _THROTTLED, _YIELDED = (STATES.index(name) for name in ("runq", "throttled", "yielded"))


class QuotaSeconds:
    """Replaces the culprits of throttled (process, second) pairs by one unknown culprit with the whole time."""

    def __init__(self, *, throttles_tasks: bool) -> None:
        self._throttles_tasks = throttles_tasks
        self._before: frozenset[int] = frozenset()
        self.unknown_ns = 0

    def settle(
        self, culprit_times: Sequence[CulpritTime], growth: Mapping[int, np.ndarray[Any, Any]]
    ) -> list[CulpritTime]:
        """The valid culprit times. growth: slot -> growth of each thread-state time of the process in this second.

        The second after a throttled one is unknown, too: a CPU that stood idle books its waiters at its next switch.
        """
        self.unknown_ns = 0
        if self._throttles_tasks:
            return list(culprit_times)
        throttled = frozenset(slot for slot, clocks in growth.items() if clocks[_THROTTLED] > 0)
        held, self._before = throttled | self._before, throttled
        settled = [culprit_time for culprit_time in culprit_times if culprit_time.slot not in held]
        for slot in sorted(held & growth.keys()):
            for clock, is_yielded in ((_RUNQ, False), (_YIELDED, True)):
                if waited_ns := int(growth[slot][clock]):
                    settled.append(_unknown(slot, waited_ns, is_yielded=is_yielded))
                    self.unknown_ns += waited_ns
        return settled


def _unknown(slot: int, ns: int, *, is_yielded: bool) -> CulpritTime:
    return CulpritTime(
        slot=slot,
        is_yielded=is_yielded,
        culprit_pid=UNKNOWN_PID,
        culprit_name=UNKNOWN_NAME,
        culprit_cgroup_id=0,
        ns=ns,
        switches=0,
    )
