"""A stream's account adds up, and names what it does not know."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.accounting import main_stream, stream_breakdowns
from ingero.events import STATES, SyncIntervalFlag
from ingero.store.arrays.arrays import SYNC_INTERVAL_DTYPE

MS = 1_000_000


def sync_interval(begin_ms: int, *, empty: int, busy: int, late: int, **fields: Any) -> np.ndarray[Any, Any]:
    """One sync interval; the sync begins when the GPU is ready."""
    made = np.zeros(1, SYNC_INTERVAL_DTYPE)
    a = begin_ms * MS
    f, r, b = a + empty * MS, a + (empty + busy) * MS, a + (empty + busy + late) * MS
    values = {
        "process": 1, "pid": 10, "prev_sync_end_ns": a, "first_launch_ns": f, "sync_start_ns": r, "gpu_done_ns": r,
        "gpu_done_low_ns": r, "gpu_done_high_ns": r, "sync_end_ns": b,
        "idle_ns": f - a, "busy_ns": r - f, "return_delay_ns": b - r, "launches": 5, **fields,
    }  # fmt: skip
    for name, value in values.items():
        made[name] = value
    return made


def test_wall_time_is_empty_plus_busy_plus_late() -> None:
    breakdown = stream_breakdowns(
        np.concatenate([sync_interval(0, empty=1, busy=5, late=2), sync_interval(8, empty=3, busy=4, late=0)])
    )[0]
    assert breakdown.wall_ns == 15 * MS
    assert breakdown.wall_ns == breakdown.idle.total_ns + breakdown.busy_ns + breakdown.return_delay_ns
    assert breakdown.sync_intervals == 2
    assert breakdown.launches == 10


def test_gpu_streams_are_kept_apart() -> None:
    sync_intervals = np.concatenate(
        [sync_interval(0, empty=1, busy=5, late=0), sync_interval(0, empty=0, busy=9, late=0, stream=7)]
    )
    breakdowns = stream_breakdowns(sync_intervals)
    assert [(one.stream, one.busy_ns) for one in breakdowns] == [(7, 9 * MS), (0, 5 * MS)]


def test_the_main_gpu_stream_is_the_one_with_the_most_device_work() -> None:
    sync_intervals = np.concatenate(
        [sync_interval(0, empty=1, busy=5, late=0), sync_interval(0, empty=0, busy=9, late=0, stream=7)]
    )
    main = main_stream(stream_breakdowns(sync_intervals), 1)
    assert main is not None
    assert main.stream == 7
    assert main_stream(stream_breakdowns(sync_intervals), 2) is None


def test_parts_without_a_thread_of_their_own_are_unknown_time() -> None:
    handed_over = sync_interval(0, empty=4, busy=1, late=0)
    handed_over["idle_state_ns"] = -1
    own = sync_interval(5, empty=3, busy=1, late=0)
    own["idle_state_ns"][0, STATES.index("sleep")] = 3 * MS
    part = stream_breakdowns(np.concatenate([handed_over, own]))[0].idle
    assert part.unknown_ns == 4 * MS
    assert part.in_state("sleep") == 3 * MS


def test_incomplete_sync_intervals_are_counted() -> None:
    sync_intervals = np.concatenate(
        [
            sync_interval(0, empty=0, busy=1, late=0, flags=int(SyncIntervalFlag.INCOMPLETE)),
            sync_interval(1, empty=0, busy=1, late=0),
        ]
    )
    assert stream_breakdowns(sync_intervals)[0].incomplete == 1


def test_late_pickup_keeps_its_bounds() -> None:
    polled = sync_interval(0, empty=0, busy=4, late=2)
    polled["gpu_done_low_ns"] -= MS
    polled["gpu_done_high_ns"] += MS
    breakdown = stream_breakdowns(polled)[0]
    assert (breakdown.return_delay_low_ns, breakdown.return_delay_ns, breakdown.return_delay_high_ns) == (
        MS,
        2 * MS,
        3 * MS,
    )


def test_nothing_recorded_is_no_breakdown() -> None:
    assert stream_breakdowns(np.zeros(0, SYNC_INTERVAL_DTYPE)) == []
