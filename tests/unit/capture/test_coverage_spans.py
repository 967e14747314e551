"""Which time ranges share a moment with a change of what is traced."""

from __future__ import annotations

import numpy as np

from ingero.capture.loop import coverage_spans as changed_spans
from ingero.capture.loop.coverage_spans import CoverageChanges


def touched(changes: CoverageChanges, *time_ranges: tuple[int, int]) -> list[bool]:
    begin, end = np.array(time_ranges, np.int64).T
    return [bool(one) for one in changes.touch(begin, end)]


def test_without_a_change_nothing_is_touched() -> None:
    assert touched(CoverageChanges(), (0, 10)) == [False]


def test_a_time_range_is_touched_if_it_spans_begins_or_ends_in_a_change() -> None:
    changes = CoverageChanges()
    changes.changed(100, 110, is_blind=False)
    assert touched(changes, (0, 99), (0, 100), (0, 200), (105, 106), (110, 200), (111, 200)) == [
        False,
        True,
        True,
        True,
        True,
        False,
    ]


def test_everything_after_a_blinding_change_is_touched_until_the_next_one_has_ended() -> None:
    changes = CoverageChanges()
    changes.changed(100, 110, is_blind=True)
    assert touched(changes, (500, 600)) == [True]
    changes.changed(700, 710, is_blind=False)
    assert touched(changes, (500, 600), (699, 705), (711, 800)) == [True, True, False]


def test_several_changes_are_told_apart() -> None:
    changes = CoverageChanges()
    for begin in (100, 300, 500):
        changes.changed(begin, begin + 10, is_blind=False)
    assert touched(changes, (111, 299), (299, 301), (311, 499), (0, 1000), (511, 600)) == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_of_many_changes_the_newest_answer_for_all_of_what_ends_after_them() -> None:
    changes, kept = CoverageChanges(), changed_spans._KEPT
    for number in range(3 * kept):
        changes.changed(100 * number, 100 * number + 10, is_blind=False)
    assert len(changes._time_ranges) == kept
    now = 100 * 3 * kept
    assert touched(changes, (50, now), (now - 189, now), (now - 89, now)) == [True, True, False]
