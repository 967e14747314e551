"""Spreading what lasted over columns of time loses nothing, and gives none to times in which nothing lasted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingero.serve.dashboard.columns import clock_points, spread
from ingero.store.arrays import arrays

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_790_000_000 * SECOND_NS

intervals = st.lists(st.tuples(st.integers(0, 5 * SECOND_NS), st.integers(0, 3 * SECOND_NS)), min_size=1, max_size=20)


@given(intervals, st.integers(1_000_000, SECOND_NS))
def test_nothing_is_lost_and_nothing_made_up(rows: list[tuple[int, int]], step_ns: int) -> None:
    begins = np.array([BEGIN_NS + begin for begin, _ in rows])
    lengths = np.array([length for _, length in rows])
    edges = BEGIN_NS + step_ns * np.arange(8 * SECOND_NS // step_ns + 2)
    found = spread(begins, begins + lengths, lengths[:, None], edges)[:, 0]
    assert found.sum() == lengths.sum()
    inside = [np.minimum(begins + lengths, end) - np.maximum(begins, end - step_ns) for end in edges[1:].tolist()]
    expected = np.array([np.maximum(one, 0).sum() for one in inside])
    assert np.abs(found - expected).max() <= len(rows)  # a nanosecond for each, by rounding


def test_what_lies_outside_of_the_columns_is_left_out() -> None:
    edges = BEGIN_NS + SECOND_NS * np.arange(3)
    begins = np.array([BEGIN_NS - SECOND_NS, BEGIN_NS + 3 * SECOND_NS // 2])
    found = spread(begins, begins + 2 * SECOND_NS, np.full((2, 1), 200), edges)
    assert found[:, 0].tolist() == [100, 50]


def test_seconds_that_drift_fill_each_column_once() -> None:
    """Rows of 1.002 s in columns of 1 s: a row in the column that it begins in would make one of 500 twice as high."""
    seconds = np.zeros(1000, arrays.THREAD_STATE_SECOND_DTYPE)
    seconds["period_ns"] = 1_002_000_000
    seconds["start_ns"] = BEGIN_NS + np.arange(1000) * 1_002_000_000
    seconds["state_ns"][:, 0] = seconds["period_ns"]
    points = clock_points(seconds, SECOND_NS)
    assert {round(point["ns"][0] / point["elapsed_ns"], 6) for point in points} == {1.0}
    assert sum(point["ns"][0] for point in points) == 1000 * 1_002_000_000
