"""Rows as columns are what rows as tuples were, and stay it whatever their arrays become."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from ingero.store.writing import tables
from ingero.store.writing.row_columns import Rows

COUNT = 3000


def rows() -> Rows:
    numbers = np.arange(COUNT)
    return Rows(COUNT, [numbers, [str(number) for number in range(COUNT)], None, "all", numbers / 2])


def test_rows_are_tuples_of_their_columns() -> None:
    expected = [(number, str(number), None, "all", number / 2) for number in range(COUNT)]
    assert list(rows()) == expected
    assert rows() == expected
    assert rows() != expected[1:]
    assert rows() != [*expected[1:], expected[0]]
    assert [type(value) for value in rows()[7]] == [int, str, type(None), str, float]


@pytest.mark.parametrize("at", [slice(5), slice(2990, 4000), slice(-3, None), slice(7, 7), slice(1, 2500)])
def test_a_time_range_of_rows_is_that_of_their_tuples(at: slice) -> None:
    assert list(rows()[at]) == list(rows())[at]
    assert len(rows()[at]) == len(list(rows())[at])


def test_a_row_is_found_from_both_ends_and_none_beyond() -> None:
    assert rows()[-1] == rows()[COUNT - 1] == list(rows())[-1]
    with pytest.raises(IndexError):
        rows()[COUNT]


def test_what_becomes_of_an_array_later_is_not_in_the_rows() -> None:
    """Readings of the kernel's tables are used again a second later."""
    started, pids = np.arange(10), [1] * 10
    made = tables.EVENTS.rows(10, session=1, start_ns=started, duration_ns=5, pid=pids, tid=1, source=1, op=3)
    before = list(made)
    started[:] = 0
    pids[:] = [2] * 10
    assert list(made) == before


def test_unsigned_numbers_are_the_signed_ones_with_the_same_bits() -> None:
    made = tables.STRINGS.rows(2, string=np.array([1, 2**64 - 1], np.uint64), text="x")
    assert list(made) == [(1, "x"), (-1, "x")]


def test_numbers_take_a_fraction_of_their_memory_as_tuples() -> None:
    columns = {name: np.arange(COUNT) * 1_000_000_007 for name in tables.SYNC_INTERVALS.columns}
    tracemalloc.start()
    made = tables.SYNC_INTERVALS.rows(COUNT, **columns)
    as_columns = tracemalloc.get_traced_memory()[0]
    tuples = list(made)
    as_tuples = tracemalloc.get_traced_memory()[0] - as_columns
    tracemalloc.stop()
    assert len(tuples) == COUNT
    assert as_columns < as_tuples / 3
