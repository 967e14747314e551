"""Positions of marks of progress: calibrated for a full queue, and never going back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingero.capture.steps.mark_rows import QUEUE_DEPTH, MarkRows
from ingero.events import BLOCKED_KINDS

SYNC, FULL = (BLOCKED_KINDS.index(name) for name in ("sync", "launch"))
_NUMBERS = ("time_ns", "waited_ns", "position", "queued", "outstanding", "stream", "device", "process_slot", "kind")
MARK = np.dtype([(name, "<i8") for name in _NUMBERS])


@pytest.fixture
def rows() -> MarkRows:
    unused: Any = None
    return MarkRows(unused, unused, numbers_of=unused, gpus_of=unused)


def marks(*found: dict[str, int]) -> np.ndarray[Any, Any]:
    """Marks (`struct mark_record`) with these fields, a millisecond apart."""
    batch = np.zeros(len(found), MARK)
    for index, one in enumerate(found):
        batch["time_ns"][index] = index * 1_000_000
        for name, value in one.items():
            batch[name][index] = value
    return batch


def sync(position: int, **fields: int) -> dict[str, int]:
    return {"kind": SYNC, "position": position, "queued": position + 10, **fields}


def full(queued: int, outstanding: int, **fields: int) -> dict[str, int]:
    return {"kind": FULL, "queued": queued, "outstanding": outstanding, **fields}


def test_a_wait_tells_its_own_position_and_a_full_queue_what_it_cannot_hold(rows: MarkRows) -> None:
    found = rows.positions(marks(sync(500), full(2000, 1500)))
    assert found.tolist() == [500, 2000 - QUEUE_DEPTH]


def test_a_queue_that_was_full_with_fewer_calls_holds_no_more(rows: MarkRows) -> None:
    """Several streams share it, or its calls are graphs."""
    found = rows.positions(marks(full(2000, 950), full(3000, 1950)))
    assert found.tolist() == [2000 - 950, 3000 - 950]


def test_what_says_less_than_was_known_is_left_out(rows: MarkRows) -> None:
    assert rows.positions(marks(sync(2000), full(2100, 1100), sync(1900))).tolist() == [2000, 0, 0]


def test_each_stream_and_each_process_has_positions_of_its_own(rows: MarkRows) -> None:
    found = rows.positions(marks(sync(2000), sync(10, stream=7), sync(20, process_slot=1)))
    assert found.tolist() == [2000, 10, 20]


def test_a_later_process_in_a_slot_begins_anew(rows: MarkRows) -> None:
    rows.positions(marks(sync(2000), full(4000, 950)))
    rows.forget(0)
    assert rows.positions(marks(sync(5), full(4000, 4000))).tolist() == [5, 4000 - QUEUE_DEPTH]
