"""Sums of the kernel become growth per reading, and thresholds follow what was seen."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

from ingero.attach.kernel_side import CELL_OP_SHIFT, SLOT_SHIFT
from ingero.attach.objects import object_path
from ingero.capture.sums.cells import (
    MAX_RECORDS_PER_SECOND,
    RARE_RECORDS,
    CellReader,
    bucket_lower_bound_ns,
    columns_of,
    percentile_bound_ns,
    reading_of,
)
from ingero.decode.btf import btf_of
from ingero.store import histograms

CELL = btf_of(object_path("layouts")).dtype("cell")
ENTRIES = 64


class SharedArray:
    """Memory as a mapped BPF array shows it; both sides see what the other writes."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.max_entries = ENTRIES
        self._memory = mmap.mmap(-1, ENTRIES * dtype.itemsize)
        self.values: np.ndarray[Any, Any] = np.frombuffer(self._memory, dtype)

    def memory(self) -> mmap.mmap:
        return self._memory


@pytest.fixture
def keys() -> SharedArray:
    return SharedArray(np.dtype(np.uint64))


@pytest.fixture
def cells() -> SharedArray:
    return SharedArray(CELL)


@pytest.fixture
def reader(keys: SharedArray, cells: SharedArray) -> CellReader:
    return CellReader(keys, cells, CELL)  # type: ignore[arg-type]  # what CellReader uses of a map


def key(slot: int, op: int, caller: int) -> int:
    return slot << SLOT_SHIFT | op + 1 << CELL_OP_SHIFT | caller


def call(keys: SharedArray, cells: SharedArray, index: int, identity: int, *durations_ns: int) -> None:
    """What the kernel adds for these calls."""
    keys.values[index] = identity
    cell = cells.values[index]
    cell["caller"] = identity & ((1 << CELL_OP_SHIFT) - 1)
    for duration_ns in durations_ns:
        cell["count"] += 1
        cell["sum_ns"] += duration_ns
        cell["max_ns"] = max(int(cell["max_ns"]), duration_ns)
        cell["histogram"][histograms.bucket_index([duration_ns])[0]] += 1


def test_a_reading_gives_the_growth_since_the_one_before(
    reader: CellReader, keys: SharedArray, cells: SharedArray
) -> None:
    call(keys, cells, 3, key(1, 5, 0x1234), 1_000, 2_000)
    first = reader.read(1.0)
    call(keys, cells, 3, key(1, 5, 0x1234), 500)
    second = reader.read(1.0)
    assert [
        (one.slot, one.op, one.caller, int(one.growth["count"]), int(one.growth["sum_ns"])) for one in first + second
    ] == [
        (1, 5, 0x1234, 2, 3_000),
        (1, 5, 0x1234, 1, 500),
    ]


def test_a_call_ran_for_what_its_other_clocks_and_the_residual_leave(
    reader: CellReader, keys: SharedArray, cells: SharedArray
) -> None:
    call(keys, cells, 3, key(1, 5, 0x1234), 1_000, 2_000)
    cells.values[3]["state_ns"][1] = 700
    cells.values[3]["residual_ns"] = -50
    assert reader.read(1.0)[0].growth["state_ns"].tolist() == [2_350, 700, 0, 0, 0, 0, 0, 0]


def test_a_reading_in_the_middle_of_a_call_takes_nothing_back(
    reader: CellReader, keys: SharedArray, cells: SharedArray
) -> None:
    call(keys, cells, 3, key(1, 5, 0x1234), 1_000)
    readings = reader.read(1.0)
    cells.values[3]["state_ns"][1] += 700  # the kernel adds this first
    cells.values[3]["nested"] += 1
    readings += reader.read(1.0)
    call(keys, cells, 3, key(1, 5, 0x1234), 800)
    readings += reader.read(1.0)
    assert [one.growth["state_ns"][:2].tolist() for one in readings] == [[1_000, 0], [0, 700], [100, 0]]


def test_a_call_that_is_just_being_counted_is_read_whole_the_next_time(
    reader: CellReader, keys: SharedArray, cells: SharedArray
) -> None:
    call(keys, cells, 3, key(1, 5, 0x1234), 1_000)
    cells.values[3]["count"] -= 1
    assert reader.read(1.0) == []
    cells.values[3]["count"] += 1
    assert [int(one.growth["sum_ns"]) for one in reader.read(1.0)] == [1_000]


def test_cells_without_calls_are_left_out(reader: CellReader, keys: SharedArray, cells: SharedArray) -> None:
    call(keys, cells, 3, key(1, 5, 0x1234), 1_000)
    reader.read(1.0)
    assert reader.read(1.0) == []


def test_a_histogram_bucket_that_wraps_still_gives_its_growth(
    reader: CellReader, keys: SharedArray, cells: SharedArray
) -> None:
    call(keys, cells, 0, key(0, 1, 7), 1_000)
    bucket = histograms.bucket_index([1_000])[0]
    cells.values[0]["histogram"][bucket] = 0xFFFFFFFF
    reader.read(1.0)
    cells.values[0]["histogram"][bucket] = 4
    cells.values[0]["count"] += 5
    assert int(reader.read(1.0)[0].histogram[bucket]) == 5


def test_the_longest_call_of_a_second_is_not_the_longest_ever(
    reader: CellReader, keys: SharedArray, cells: SharedArray
) -> None:
    call(keys, cells, 0, key(0, 1, 7), 1_000_000)
    reader.read(1.0)
    call(keys, cells, 0, key(0, 1, 7), 1_000)
    assert 1_000 <= reader.read(1.0)[0].max_ns < 1_200


def test_rare_operations_are_recorded_whole(reader: CellReader, keys: SharedArray, cells: SharedArray) -> None:
    call(keys, cells, 0, key(0, 1, 7), *[1_000] * 50)
    reader.read(1.0)
    assert int(cells.values[0]["rare_until"]) == 50 + RARE_RECORDS


def test_after_a_quiet_time_as_many_are_recorded_whole_and_then_the_slow_ones(
    reader: CellReader, keys: SharedArray, cells: SharedArray
) -> None:
    call(keys, cells, 0, key(0, 1, 7), *[1_000] * 980, *[100_000] * 20)
    reader.read(1.0)
    reader.read(1.0)
    assert int(cells.values[0]["rare_until"]) == 1_000 + RARE_RECORDS
    assert 90_000 < int(cells.values[0]["threshold_ns"]) <= 100_000


def test_frequent_operations_are_recorded_from_their_99th_percentile_on(
    reader: CellReader, keys: SharedArray, cells: SharedArray
) -> None:
    call(keys, cells, 0, key(0, 1, 7), *[1_000] * 980, *[100_000] * 20)
    reader.read(1.0)
    assert 90_000 < int(cells.values[0]["threshold_ns"]) <= 100_000
    assert int(cells.values[0]["sample"]) == 100
    assert int(cells.values[0]["rare_until"]) == 0


def test_call_sites_of_one_operation_share_a_threshold(
    reader: CellReader, keys: SharedArray, cells: SharedArray
) -> None:
    call(keys, cells, 0, key(0, 1, 7), *[1_000] * 2_000)
    call(keys, cells, 1, key(0, 1, 8), 1_000)
    reader.read(1.0)
    assert int(cells.values[0]["threshold_ns"]) == int(cells.values[1]["threshold_ns"]) > 1


def test_thresholds_rise_while_a_process_records_too_much(
    reader: CellReader, keys: SharedArray, cells: SharedArray
) -> None:
    call(keys, cells, 0, key(0, 1, 7), *[1_000] * 1_000)
    cells.values[0]["recorded"] = 4 * MAX_RECORDS_PER_SECOND
    reader.read(1.0)
    assert int(cells.values[0]["threshold_ns"]) > 3 * 900


def test_forgotten_cells_can_be_used_again(reader: CellReader, keys: SharedArray, cells: SharedArray) -> None:
    call(keys, cells, 0, key(2, 1, 7), 1_000)
    call(keys, cells, 1, key(3, 1, 7), 1_000)
    reader.read(1.0)
    reader.forget(2)
    assert keys.values[0] == 0
    call(keys, cells, 0, key(2, 1, 9), 700)
    assert [(one.slot, one.caller, int(one.growth["sum_ns"])) for one in reader.read(1.0)] == [(2, 9, 700)]
    assert keys.values[1] == key(3, 1, 7)


def test_bucket_bounds_are_those_of_the_stored_histograms() -> None:
    assert [bucket_lower_bound_ns(bucket) for bucket in (0, 1, 9)] == [0, 128, 256]
    assert all(histograms.bounds_ns(b)[0] == pytest.approx(bucket_lower_bound_ns(b), rel=1e-3) for b in range(1, 200))


def test_a_percentile_bound_is_the_lower_bound_of_its_bucket() -> None:
    counts = histograms.count([1_000] * 99 + [1_000_000])
    assert percentile_bound_ns(counts, 0.5) <= 1_000
    assert 900_000 < percentile_bound_ns(counts, 1.0) <= 1_000_000


def test_cells_of_one_reading_are_rows_of_one_array_that_is_not_copied(
    reader: CellReader, keys: SharedArray, cells: SharedArray
) -> None:
    for index, count in ((3, 1), (5, 2), (9, 3)):
        call(keys, cells, index, key(1, index, 7), *[1000] * count)
    found = reader.read(1.0)[1:]
    reading, rows = reading_of(found)
    assert reading["count"][rows].tolist() == [2, 3]
    assert all(np.shares_memory(reading, cell.histogram) for cell in found)


def test_the_columns_of_a_reading_are_those_of_its_cells(
    reader: CellReader, keys: SharedArray, cells: SharedArray
) -> None:
    for index, (slot, op, count) in enumerate([(1, 3, 1), (255, 200, 2), (9, 0, 3)], 3):
        call(keys, cells, index, key(slot, op, 7), *[1000 * index] * count)
    found = reader.read(1.0)
    quick, slow = columns_of(found), columns_of(list(found))
    for name in ("ops", "slots", "max_ns"):
        assert getattr(quick, name).tolist() == getattr(slow, name).tolist()
    assert quick.growth[quick.rows].tobytes() == slow.growth[slow.rows].tobytes()
    assert {(9, 0), (255, 200)} <= set(zip(quick.slots.tolist(), quick.ops.tolist(), strict=True))


def test_cells_of_two_readings_are_put_together(reader: CellReader, keys: SharedArray, cells: SharedArray) -> None:
    found = []
    for count in (4, 5):
        call(keys, cells, 3, key(1, 2, 7), *[1000] * count)
        found += reader.read(1.0)
    reading, rows = reading_of(found)
    assert reading["count"][rows].tolist() == [4, 5]
