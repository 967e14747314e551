"""The moment the GPU was ready: exact where the thread slept until then, else bounded and estimated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.decode.sync_intervals import (
    NO_WAIT_NS,
    POLLED_NS,
    SPIN_NS,
    StreamSyncs,
    host_delay_ns,
    most_covered_value,
    op_ids,
    step_type,
    work_keys,
)
from ingero.events import STATES, SyncIntervalFlag

MS = 1_000_000
US = 1_000
LAUNCHES = 8
SYNC_INTERVAL = np.dtype(
    [(name, "<u8") for name in ("begin_ns", "first_ns", "sync_ns", "woken_ns", "return_ns", "last_off_ns")]
    + [
        (name, "<u8")
        for name in (
            "last_on_ns",
            "away_ns",
            "launches",
            "size_bytes",
            "graph",
            "step",
            "copied_bytes",
            "copy_ns_per_mib",
        )
    ]
    + [
        ("op_set", "<u8", (4,)),
        ("checkpoint_ns", "<u8", (8,)),
        ("idle_state_ns", "<u8", (len(STATES),)),
        ("launch_state_ns", "<u8", (len(STATES),)),
        ("sync_state_ns", "<u8", (len(STATES),)),
        ("flags", "u1"),
        ("are_enqueues_unseen", "<u4"),
    ]
)


def sync_interval(
    start: int = 0, *, s: int, b: int, off: int | None = None, on: int | None = None, **fields: Any
) -> Any:
    """A sync interval whose first enqueue is at `start` + 1 ms; s, b, off, on and woken are ns after that enqueue."""
    made = np.zeros(1, SYNC_INTERVAL)
    first = start + MS
    made["begin_ns"], made["first_ns"], made["sync_ns"], made["return_ns"] = start, first, first + s, first + b
    made["launches"], made["step"] = LAUNCHES, 1
    made["checkpoint_ns"] = first + np.arange(LAUNCHES) * (s // (LAUNCHES + 1))
    if off is not None and on is not None:
        made["last_off_ns"], made["last_on_ns"] = first + off, first + on
        made["away_ns"] = first + fields.pop("away", off)
    if "woken" in fields:
        made["woken_ns"], made["flags"] = first + fields.pop("woken"), SyncIntervalFlag.WOKEN
    for name in fields.keys() & set(STATES):
        made["sync_state_ns"][0, STATES.index(name)] = fields.pop(name)
    for name, value in fields.items():
        made[name] = value
    return made


def judged(*sync_intervals: Any) -> tuple[Any, Any, Any]:
    """(low, ready, high) of the last sync interval, after its first enqueue, when all come in one batch."""
    batch = np.concatenate(sync_intervals)
    found = StreamSyncs().judge(batch)
    first = batch["first_ns"].astype(np.int64)
    return found.low[-1] - first[-1], found.ready[-1] - first[-1], found.high[-1] - first[-1]


def polled(start: int, busy: int) -> Any:
    """A thread that polled until the GPU was ready and returned at once."""
    return sync_interval(start, s=MS, b=busy)


def test_a_thread_that_slept_was_woken_when_the_device_was_ready() -> None:
    assert judged(sync_interval(s=MS, b=9 * MS, woken=6 * MS)) == (6 * MS, 6 * MS, 6 * MS)


def test_a_short_sync_that_kept_the_cpu_found_the_device_ready() -> None:
    found = StreamSyncs().judge(sync_interval(s=2 * MS, b=2 * MS + NO_WAIT_NS - 1))
    assert found.is_no_wait.all()
    assert found.ready[0] == 3 * MS


def test_a_long_sync_that_kept_the_cpu_polled_until_the_device_was_ready() -> None:
    assert judged(sync_interval(s=2 * MS, b=6 * MS)) == (6 * MS, 6 * MS, 6 * MS)


def test_where_syncs_sleep_one_that_did_not_sleep_did_not_wait() -> None:
    sleepers = [sync_interval(k * 20 * MS, s=MS, b=7 * MS, woken=6 * MS) for k in range(3)]
    assert judged(*sleepers, sync_interval(60 * MS, s=8 * MS, b=9 * MS)) == (8 * MS, 8 * MS, 8 * MS)


def held_up(start: int) -> Any:
    """Freeing memory on its way to the GPU, and back from it; the last time off the CPU is one of many."""
    return sync_interval(start, s=MS, b=618 * MS, off=600 * MS, on=617 * MS, woken=617 * MS, uninterruptible=610 * MS)


def test_where_syncs_sleep_one_that_only_the_kernel_held_up_did_not_wait_that_long_for_the_device() -> None:
    sleepers = [sync_interval(k * 20 * MS, s=MS, b=7 * MS, woken=6 * MS, sleep=5 * MS) for k in range(5)]
    low, ready, _ = judged(*sleepers, held_up(100 * MS))
    assert low == MS
    assert ready == pytest.approx(6 * MS, rel=0.01)


def test_a_driver_may_wait_without_being_interruptible() -> None:
    waiting = [sync_interval(k * 20 * MS, s=MS, b=7 * MS, woken=6 * MS, uninterruptible=5 * MS) for k in range(5)]
    assert judged(*waiting, held_up(100 * MS)) == (617 * MS, 617 * MS, 617 * MS)


def test_a_thread_descheduled_while_it_polled_bounds_the_moment_by_its_absence() -> None:
    low, _, high = judged(sync_interval(s=MS, b=20 * MS + SPIN_NS - 1, off=4 * MS, on=20 * MS))
    assert (low, high) == (4 * MS, 20 * MS)


def test_a_thread_that_stayed_a_little_after_its_absence_may_have_polled_then() -> None:
    back = 20 * MS + (SPIN_NS + POLLED_NS) // 2
    low, _, high = judged(sync_interval(s=MS, b=back, off=4 * MS, on=20 * MS))
    assert (low, high) == (4 * MS, back)


def test_a_thread_that_stayed_long_after_its_absence_polled_then() -> None:
    back = 20 * MS + POLLED_NS
    assert judged(sync_interval(s=MS, b=back, off=4 * MS, on=20 * MS)) == (back, back, back)


def test_a_thread_descheduled_at_once_had_not_looked_at_the_device() -> None:
    low, _, _ = judged(sync_interval(s=2 * MS, b=20 * MS, off=2 * MS + US, on=20 * MS - US))
    assert low == 2 * MS


def test_a_thread_that_came_back_unseen_is_bounded_by_its_return() -> None:
    low, _, high = judged(sync_interval(s=MS, b=20 * MS, off=4 * MS, on=2 * MS))
    assert (low, high) == (4 * MS, 20 * MS)


def test_inside_its_bounds_the_moment_is_where_the_usual_time_puts_it() -> None:
    usual = [polled(k * 20 * MS, 6 * MS) for k in range(5)]
    _, ready, _ = judged(*usual, sync_interval(100 * MS, s=MS, b=20 * MS, off=4 * MS, on=20 * MS - US))
    assert ready == pytest.approx(6 * MS, rel=0.01)


def test_the_usual_time_is_clamped_to_the_bounds() -> None:
    usual = [polled(k * 20 * MS, 3 * MS) for k in range(5)]
    _, ready, _ = judged(*usual, sync_interval(100 * MS, s=MS, b=20 * MS, off=4 * MS, on=20 * MS - US))
    assert ready == 4 * MS


def test_a_yielding_thread_that_seems_to_have_found_the_device_far_too_slow_had_not_looked() -> None:
    usual = [polled(k * 20 * MS, 6 * MS) for k in range(5)]
    low, ready, _ = judged(*usual, sync_interval(100 * MS, s=MS, b=20 * MS, off=19 * MS, on=20 * MS - US, away=2 * MS))
    assert low == 2 * MS
    assert ready == pytest.approx(6 * MS, rel=0.01)


def test_a_yielding_thread_that_found_the_device_a_little_slow_is_believed() -> None:
    usual = [polled(k * 20 * MS, 6 * MS) for k in range(5)]
    low, ready, _ = judged(*usual, sync_interval(100 * MS, s=MS, b=20 * MS, off=8 * MS, on=20 * MS - US, away=2 * MS))
    assert (low, ready) == (8 * MS, 8 * MS)


def test_late_launches_put_the_moment_off() -> None:
    usual = [polled(k * 20 * MS, 6 * MS) for k in range(5)]
    late = sync_interval(100 * MS, s=5 * MS, b=20 * MS, off=5 * MS + 10 * US, on=20 * MS - US)
    late["checkpoint_ns"][0, 1:] = late["first_ns"] + 4 * MS + np.arange(7) * 100 * US  # stopped behind the first of 8
    _, ready, _ = judged(*usual, late)
    assert 6 * MS + 3 * MS <= ready <= 6 * MS + 4 * MS


def test_work_of_another_class_has_a_usual_time_of_its_own() -> None:
    training = [polled(k * 20 * MS, 6 * MS) for k in range(9)]
    evaluation = [sync_interval(k * 20 * MS, s=MS, b=12 * MS, size_bytes=1 << 20) for k in range(9, 12)]
    hidden = sync_interval(240 * MS, s=MS, b=20 * MS, off=4 * MS, on=20 * MS - US, size_bytes=1 << 20)
    _, ready, _ = judged(*training, *evaluation, hidden)
    assert ready == pytest.approx(12 * MS, rel=0.01)


def test_what_earlier_batches_showed_places_a_batch_of_nothing_but_bounds() -> None:
    gpu_stream = StreamSyncs()
    gpu_stream.judge(np.concatenate([polled(k * 20 * MS, 6 * MS) for k in range(5)]))
    hidden = [sync_interval(k * 30 * MS, s=MS, b=20 * MS, off=2 * MS, on=20 * MS - US) for k in range(5, 205)]
    for part in np.array_split(np.concatenate(hidden), 4):
        found = gpu_stream.judge(part)
        assert found.ready - part["first_ns"].astype(np.int64) == pytest.approx(6 * MS, rel=0.01)


def test_a_device_that_has_become_slower_is_believed_when_the_bounds_say_so() -> None:
    gpu_stream = StreamSyncs()
    gpu_stream.judge(np.concatenate([polled(k * 20 * MS, 6 * MS) for k in range(5)]))
    slower = [sync_interval(k * 30 * MS, s=MS, b=20 * MS, off=8 * MS, on=20 * MS - US) for k in range(5, 105)]
    exact = [polled(k * 30 * MS, 10 * MS) for k in range(105, 125)]
    found = gpu_stream.judge(np.concatenate([*slower, *exact]))
    first = np.concatenate(slower)["first_ns"].astype(np.int64)
    assert found.ready[:100] - first == pytest.approx(10 * MS, rel=0.01)


times = st.integers(min_value=0, max_value=50 * MS)


@given(
    st.lists(
        st.tuples(times, times, times, times, st.booleans()).map(lambda t: (sorted(t[:2]), sorted(t[2:4]), t[4])),
        min_size=1,
        max_size=20,
    )
)
def test_the_moment_lies_between_its_bounds_and_inside_the_sync_interval(
    cases: list[tuple[list[int], list[int], bool]],
) -> None:
    made: list[Any] = []
    for (s, b), (off, on), is_woken in cases:
        absence = {"off": min(max(off, s), b), "on": min(max(on, s), b)}
        woken = {"woken": absence["on"]} if is_woken else {}
        made.append(sync_interval(len(made) * 100 * MS, s=s, b=b, **absence, **woken))
    batch = np.concatenate(made)
    found = StreamSyncs().judge(batch)
    assert (batch["first_ns"] <= found.low).all()
    assert (found.low <= found.ready).all()
    assert (found.ready <= found.high).all()
    assert (found.high <= batch["return_ns"]).all()


def test_launches_in_time_delay_nothing() -> None:
    assert host_delay_ns(sync_interval(s=MS, b=7 * MS), 6.0 * MS).tolist() == [0]


def test_launches_slower_than_the_device_delay_it_by_the_difference() -> None:
    launching = 9 * MS
    evenly = sync_interval(s=launching, b=launching)
    assert host_delay_ns(evenly, 4.0 * MS)[0] == pytest.approx(launching - 4 * MS, rel=0.15)


def test_most_intervals_decide() -> None:
    low = np.array([0, 4, 5, 100], np.int64) * MS
    high = np.array([6, 8, 9, 101], np.int64) * MS
    assert 5 * MS <= most_covered_value(low, high) <= 6 * MS


def test_a_usual_value_is_kept_while_nearly_as_many_contain_it() -> None:
    low = np.array([2, 3, 3, 3, 5], np.int64) * MS
    high = np.array([9, 9, 9, 9, 10], np.int64) * MS
    assert most_covered_value(low, high, 4.0 * MS) == 4 * MS
    assert 5 * MS <= most_covered_value(low, high, 2.5 * MS) <= 9 * MS


def test_op_set_words_are_64_ids_each() -> None:
    assert op_ids(np.array([1 << 3, 1, 0, 1 << 63], np.uint64)) == [3, 64, 255]


def test_equal_work_within_a_factor_of_two_is_one_class() -> None:
    assert step_type("cudaLaunchKernel", 130, 5, 0) == step_type("cudaLaunchKernel", 250, 7, 0)
    assert step_type("cudaLaunchKernel", 130, 5, 0) != step_type("cudaLaunchKernel", 260, 5, 0)


@pytest.mark.parametrize("field", ["launches", "size_bytes", "graph"])
def test_work_keys_tell_what_class_keys_tell(field: str) -> None:
    values = [130, 250, 260, 1, 0]
    sync_intervals = np.concatenate([sync_interval(s=1, b=2, **{field: value}) for value in values])
    arguments = {"launches": LAUNCHES, "size_bytes": 0, "graph": 0}
    names = [step_type("op", **{**arguments, field: value}) for value in values]
    keys = work_keys(sync_intervals)
    assert [[a == b for b in keys] for a in keys] == [[a == b for b in names] for a in names]


COPY = int(SyncIntervalFlag.PAGEABLE_COPY | SyncIntervalFlag.BEFORE_COPY)
BEGUN = 100 * MS
BATCH = 4_000_000  # bytes, which the fastest copy of these tests takes 1 ms for


def copy(start: int, *, s: int, b: int, woken: int | None = None, **fields: Any) -> Any:
    """A sync interval that begins with work at once and ends with a copy to the GPU, which waits first."""
    made = sync_interval(BEGUN + start - MS, s=s, b=b, copied_bytes=BATCH, **fields)
    made["begin_ns"] = made["first_ns"]
    made["flags"] = COPY
    if woken is not None:
        made["woken_ns"], made["flags"] = BEGUN + start + woken, COPY | SyncIntervalFlag.WOKEN
    return made


def slept(start: int, *, ready: int, late: int = 0, copied: int = MS) -> Any:
    """Its thread slept from 2 ms on until the GPU was ready, was runnable, and then copied."""
    back = ready + late + copied
    clocks = {"run": copied + 50 * US, "sleep": ready - 2 * MS - 50 * US, "runq": late}
    return copy(start, s=2 * MS, b=back, woken=ready, **clocks)


def spun(start: int, *, b: int, s: int = 2 * MS) -> Any:
    """Its thread kept its CPU: it polled, then copied."""
    return copy(start, s=s, b=b, run=b - s)


def parted(*sync_intervals: Any) -> tuple[Any, Any]:
    """One after another, each begun when the one before returned; cut where they copied, and judged.

    Times are from the begin of the first on.
    """
    gpu_stream = StreamSyncs()
    cut = gpu_stream.parted(np.concatenate(sync_intervals))
    found = gpu_stream.judge(cut)
    for name in ("begin_ns", "first_ns", "sync_ns", "return_ns"):
        cut[name] -= np.uint64(BEGUN)
    return cut, replace(found, low=found.low - BEGUN, ready=found.ready - BEGUN, high=found.high - BEGUN)


def test_a_copy_belongs_to_the_sync_interval_that_it_begins() -> None:
    cut, _ = parted(slept(0, ready=6 * MS), slept(7 * MS, ready=6 * MS), slept(14 * MS, ready=6 * MS))
    assert cut["return_ns"].tolist() == [6 * MS, 13 * MS, 20 * MS]
    assert cut["first_ns"].tolist() == cut["begin_ns"].tolist() == [0, 6 * MS, 13 * MS]
    assert cut["launch_state_ns"][:, STATES.index("run")].tolist() == [0, MS, MS]
    assert cut["sync_state_ns"][:, STATES.index("run")].tolist() == [50 * US] * 3


def test_what_a_copy_took_goes_into_the_next_batch() -> None:
    gpu_stream = StreamSyncs()
    gpu_stream.parted(slept(0, ready=6 * MS))
    cut = gpu_stream.parted(slept(7 * MS, ready=6 * MS))
    assert (cut["begin_ns"][0], cut["first_ns"][0]) == (BEGUN + 6 * MS, BEGUN + 6 * MS)


def test_work_that_began_later_leaves_what_a_copy_took_to_the_time_before_it() -> None:
    later = slept(7 * MS, ready=6 * MS)
    later["first_ns"] += MS
    cut, _ = parted(slept(0, ready=6 * MS), later)
    assert (cut["begin_ns"][1], cut["first_ns"][1]) == (6 * MS, 8 * MS)
    assert cut["idle_state_ns"][1, STATES.index("run")] == MS


def test_the_wake_up_of_a_copy_that_waited_is_when_the_device_was_ready() -> None:
    cut, found = parted(slept(0, ready=6 * MS, late=3 * MS))
    assert (found.low[0], found.ready[0], found.high[0]) == (6 * MS, 6 * MS, 6 * MS)
    # Runnable: no part of the copy, and none of the GPU; what it ran before it slept may have been copying.
    assert 3 * MS - 50 * US <= int(cut["return_ns"][0]) - int(found.ready[0]) <= 3 * MS
    assert not found.is_estimated[0]


def test_where_copies_sleep_one_that_did_not_found_the_device_ready() -> None:
    cut, found = parted(*(slept(k * 7 * MS, ready=6 * MS) for k in range(3)), spun(21 * MS, s=9 * MS, b=11 * MS))
    assert cut["return_ns"][3] == 30 * MS  # it copied all the time
    assert found.is_no_wait.tolist() == [False, False, False, True]


def test_a_copy_that_polled_copied_for_at_least_what_the_fastest_took() -> None:
    """The third found the GPU ready and took 1 ms; the others polled until 5 ms, as it seems at the latest."""
    cut, found = parted(spun(0, b=6 * MS), spun(6 * MS, b=6 * MS), spun(12 * MS, s=8 * MS, b=9 * MS))
    assert (cut["return_ns"] - cut["sync_ns"]).tolist() == [3 * MS, 3 * MS, 0]
    assert found.is_no_wait.tolist() == [False, False, True]
    assert found.ready.tolist() == found.high.tolist() == [5 * MS, 11 * MS, 20 * MS]
    assert found.low.tolist() == [2 * MS, 8 * MS, 20 * MS]
    assert found.is_estimated.tolist() == [True, True, False]


def test_a_thread_that_was_descheduled_while_it_copied_had_waited_before() -> None:
    """Off from 4 to 9 ms while it polled, ready at 6; half of the copy; off from 9.5 to 12 ms; the rest."""
    usual = [spun(k * 7 * MS, b=7 * MS) for k in range(5)]
    idle = spun(35 * MS, s=6 * MS, b=7 * MS)
    late = copy(42 * MS, s=2 * MS, b=12_500 * US, off=9_500 * US, on=12 * MS, run=3 * MS, runq=7_500 * US)
    cut, found = parted(*usual, idle, late)
    begun = 42 * MS - MS  # of the sync interval: with the copy before
    assert found.low[-1] == 42 * MS + 2 * MS
    assert found.high[-1] == 42 * MS + 9 * MS
    assert found.ready[-1] == pytest.approx(begun + 7 * MS, abs=100 * US)
    assert cut["return_ns"][-1] == 42 * MS + 11_500 * US  # late by 5.5 ms


def test_a_slower_device_shows_in_the_wait_before_a_copy_that_polled() -> None:
    steady = [spun(k * 6 * MS, b=6 * MS) for k in range(20)]
    slower = [spun(120 * MS + k * 9 * MS, b=9 * MS) for k in range(20)]
    cut, found = parted(spun(-9 * MS, s=8 * MS, b=9 * MS), *steady, *slower)
    busy = found.ready - cut["first_ns"].astype(np.int64)
    assert busy[1:21].tolist() == [6 * MS] * 20  # with the copy that begins it
    assert busy[21:].tolist() == [9 * MS] * 20
    assert (cut["return_ns"].astype(np.int64) == found.ready).all()  # nothing of it was returned late


def test_other_syncs_are_left_as_they_are() -> None:
    syncs = np.concatenate([polled(k * 20 * MS, 6 * MS) for k in range(5)])
    assert (StreamSyncs().parted(syncs) == syncs).all()
