"""A wait that a timeout cuts up is one wait, whoever ends it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.offcpu.split_waits import merge_split_waits
from ingero.events import INTERPRETER_LOCK, THREAD_STATES, WAKER_KINDS
from ingero.store.arrays.arrays import OFFCPU_DTYPE

MS = 1_000_000


def sleeps(*ends: tuple[float, float, str], stack: int = 7, futex: int = 0) -> Any:
    """(begin, end, waker) of each in ms."""
    rows = np.zeros(len(ends), OFFCPU_DTYPE)
    for row, (begin, end, waker) in zip(rows, ends, strict=True):
        row["start_ns"], row["woken_ns"] = round(begin * MS), round(end * MS)
        row["duration_ns"] = row["woken_ns"] - row["start_ns"]
        row["waker_kind"], row["stack_hash"], row["futex"] = WAKER_KINDS.index(waker), stack, futex
        row["state"] = THREAD_STATES.index("sleep")
    return rows


def lengths(rows: Any) -> list[float]:
    return [float(one) / MS for one in rows["duration_ns"]]


LOOKS = ((0, 5000, "timer"), (5004, 10004, "timer"), (10004.2, 13000, "thread"))


def test_the_last_waker_ended_all_of_it() -> None:
    (one,) = merge_split_waits(sleeps(*LOOKS))
    assert (one["start_ns"], one["duration_ns"]) == (0, 13_000 * MS)
    assert WAKER_KINDS[one["waker_kind"]] == "thread"


def test_what_nobody_ended_stays_as_it_is() -> None:
    rows = sleeps(*LOOKS[:2])
    assert lengths(merge_split_waits(rows)) == [5000, 5000]


def test_other_places_are_other_waits() -> None:
    rows = sleeps(*LOOKS)
    rows["stack_hash"][2] = 8
    assert len(merge_split_waits(rows)) == 3
    assert len(merge_split_waits(sleeps(*LOOKS, stack=0))) == 3


def test_a_sleep_that_was_not_looked_at_belongs_to_those_right_beside_it() -> None:
    rows = sleeps((0, 5000, "timer"), (5000.2, 10000, "timer"), (10000.2, 13000, "thread"))
    for unseen in range(3):
        some = rows.copy()
        some["stack_hash"][unseen] = 0
        assert lengths(merge_split_waits(some)) == [13_000]
    apart = sleeps((0, 5000, "timer"), (5008, 10000, "timer"), (10000.2, 13000, "thread"))
    apart["stack_hash"][0] = 0
    assert lengths(merge_split_waits(apart)) == [5000, 7992]


def test_work_between_two_sleeps_parts_them() -> None:
    assert lengths(merge_split_waits(sleeps((0, 1000, "timer"), (1020, 2000, "thread")))) == [1000, 980]


def test_waits_before_and_after_are_their_own() -> None:
    rows = sleeps((-900, -500, "thread"), *LOOKS, (13_001, 13_100, "thread"))
    assert lengths(merge_split_waits(rows)) == [400, 13_000, 99]


def test_the_interpreter_lock_has_a_rule_of_its_own() -> None:
    assert len(merge_split_waits(sleeps(*LOOKS, futex=64 | INTERPRETER_LOCK))) == 3
    assert len(merge_split_waits(sleeps((0, 5, "timer"), (5.01, 9, "thread")))) == 2
