"""What lies in many time ranges is what counting nanosecond by nanosecond finds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingero.store.arrays.spans import Spans, joined, left_out
from ingero.store.records import Window

MOMENTS = st.integers(0, 40)
WINDOWS = st.lists(st.tuples(MOMENTS, MOMENTS).map(lambda pair: Window(begin_ns=min(pair), end_ns=max(pair))))


@given(WINDOWS, st.lists(st.tuples(MOMENTS, st.integers(1, 20)), min_size=1))
def test_times_are_held_touched_and_shared_as_their_nanoseconds_are(
    windows: list[Window], times: list[tuple[int, int]]
) -> None:
    covered = {ns for one in windows for ns in range(one.begin_ns, one.end_ns)}
    begins = np.array([begin for begin, _ in times], np.int64)
    ends = begins + [length for _, length in times]
    inside = [
        sum(ns in covered for ns in range(begin, end))
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    spans = Spans(windows)
    assert spans.hold(begins, ends).tolist() == [one == length for one, (_, length) in zip(inside, times, strict=True)]
    assert spans.touch(begins, ends).tolist() == [one > 0 for one in inside]
    assert np.allclose(spans.shares(begins, ends) * (ends - begins), inside)


@given(WINDOWS)
def test_joined_windows_are_the_same_time_in_order_and_apart(windows: list[Window]) -> None:
    found = joined(windows)
    assert [one.begin_ns for one in found] == sorted(one.begin_ns for one in found)
    assert all(one.end_ns < other.begin_ns for one, other in pairwise(found))
    mine, theirs = ({ns for one in some for ns in range(one.begin_ns, one.end_ns)} for some in (found, windows))
    assert mine == theirs


@given(st.tuples(MOMENTS, st.integers(1, 20)), WINDOWS)
def test_what_others_leave_of_a_window_is_all_that_they_do_not_cover(
    window: tuple[int, int], others: list[Window]
) -> None:
    whole = Window(begin_ns=window[0], end_ns=sum(window))
    left = {ns for one in left_out(whole, others) for ns in range(one.begin_ns, one.end_ns)}
    taken = {ns for one in others for ns in range(one.begin_ns, one.end_ns)}
    assert left == set(range(whole.begin_ns, whole.end_ns)) - taken


def test_a_moment_is_inside_only_past_the_begin_of_a_time_range() -> None:
    spans = Spans([Window(begin_ns=10, end_ns=20), Window(begin_ns=30, end_ns=40)])
    moments = np.array([5, 10, 11, 19, 20, 25, 30, 31, 45])
    assert spans.have_inside(moments).tolist() == [False, False, True, True, False, False, False, True, False]


def test_time_ranges_a_little_apart_are_read_at_once() -> None:
    parts = (Window(begin_ns=0, end_ns=10), Window(begin_ns=15, end_ns=20), Window(begin_ns=40, end_ns=50))
    assert Spans(parts).near(5) == (Window(begin_ns=0, end_ns=20), Window(begin_ns=40, end_ns=50))
