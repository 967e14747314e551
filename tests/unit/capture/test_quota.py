"""Under a quota the culprits of older kernels are unknown, not wrong."""

from __future__ import annotations

import numpy as np

from ingero.capture.sums.culprits import CulpritTime
from ingero.capture.sums.quota import UNKNOWN_PID, QuotaSeconds
from ingero.store.vocabulary import STATES

AFFECTED, OTHER = 3, 7


def charge(slot: int, ns: int) -> CulpritTime:
    return CulpritTime(
        slot=slot,
        is_yielded=False,
        culprit_pid=42,
        culprit_name="hog",
        culprit_cgroup_id=1,
        ns=ns,
        switches=1,
    )


def clocks(**ns: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([ns.get(name, 0) for name in STATES], np.int64)


def test_the_culprits_of_a_throttled_second_become_one_unknown_of_the_waited_time() -> None:
    quota = QuotaSeconds(throttles_tasks=False)
    settled = quota.settle([charge(AFFECTED, 50_000)], {AFFECTED: clocks(runq=1_000, throttled=49_000)})
    assert [(one.culprit_pid, one.ns) for one in settled] == [(UNKNOWN_PID, 1_000)]
    assert quota.unknown_ns == 1_000


def test_a_process_beside_the_throttled_one_keeps_its_culprits() -> None:
    quota = QuotaSeconds(throttles_tasks=False)
    growth = {AFFECTED: clocks(runq=1, throttled=1), OTHER: clocks(runq=500)}
    settled = quota.settle([charge(AFFECTED, 9), charge(OTHER, 500)], growth)
    assert charge(OTHER, 500) in settled


def test_the_second_after_a_throttled_one_is_unknown_too() -> None:
    quota = QuotaSeconds(throttles_tasks=False)
    quota.settle([], {AFFECTED: clocks(throttled=1)})
    after = quota.settle([charge(AFFECTED, 900)], {AFFECTED: clocks(runq=10)})
    later = quota.settle([charge(AFFECTED, 10)], {AFFECTED: clocks(runq=10)})
    assert [one.culprit_pid for one in after] == [UNKNOWN_PID]
    assert later == [charge(AFFECTED, 10)]


def test_waits_after_sched_yield_are_unknown_apart_from_the_others() -> None:
    quota = QuotaSeconds(throttles_tasks=False)
    settled = quota.settle([], {AFFECTED: clocks(runq=1, yielded=2, throttled=3)})
    assert [(one.is_yielded, one.ns) for one in settled] == [(False, 1), (True, 2)]


def test_a_kernel_that_throttles_tasks_keeps_every_culprit() -> None:
    quota = QuotaSeconds(throttles_tasks=True)
    given = [charge(AFFECTED, 50_000)]
    assert quota.settle(given, {AFFECTED: clocks(runq=50_000, throttled=49_000)}) == given
    assert quota.unknown_ns == 0
