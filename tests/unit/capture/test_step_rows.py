"""Rows of steps: clocks that add up whoever was blocked, types that are equal for equal work, flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ingero.attach.objects import object_path
from ingero.capture.loop.clocks import WallClock
from ingero.capture.loop.coverage_spans import CoverageSpans
from ingero.capture.steps.step_rows import StepRows, with_other_threads
from ingero.decode.btf import btf_of
from ingero.events import BLOCKED_KINDS, STATES, SyncIntervalFlag
from ingero.ops import BY_NAME
from ingero.store.writing import tables
from tests.unit.kept_rows import MemorySink

Array = np.ndarray[Any, np.dtype[Any]]

STEP = btf_of(object_path("layouts")).dtype("step_record")
RUN, SLEEP = STATES.index("run"), STATES.index("sleep")
COPY, LAUNCH = (BY_NAME[name].id for name in ("cudaMemcpyAsync", "cudaLaunchKernel"))


def steps(count: int) -> Array:
    """Steps of 10 ms: 6 run, 3 asleep, 1 in a copy that waited."""
    found = np.zeros(count, STEP)
    found["begin_ns"] = 1_000_000_000 + np.arange(count) * 10_000_000
    found["end_ns"] = found["begin_ns"] + 10_000_000
    found["host_state_ns"][:, RUN], found["host_state_ns"][:, SLEEP] = 6_000_000, 3_000_000
    found["blocked_state_ns"][:, RUN] = 1_000_000
    found["blocked_ns"][:, BLOCKED_KINDS.index("copy")] = 1_000_000
    found["op"], found["launches"], found["copies"], found["tid"] = COPY, 153, 1, 7
    return found


def traced(*, changed: bool = False, untimed: bool = False, without: Sequence[str] = ()) -> CoverageSpans:
    """Something of this, all the time."""
    coverage_spans = CoverageSpans()
    for span, is_one in (
        (coverage_spans.changed, changed),
        (coverage_spans.untimed, untimed),
        (coverage_spans.without_launches, "launches" in without),
        (coverage_spans.without_copies, "copies" in without),
    ):
        span.changed(0, 1, is_blind=is_one)
    return coverage_spans


def rows(
    batch: Array, *, changed: bool = False, untimed: bool = False, without: Sequence[str] = ()
) -> list[dict[str, Any]]:
    sink = MemorySink()
    maker(sink, traced(changed=changed, untimed=untimed, without=without)).write(batch)
    return sink.of(tables.STEPS)


def maker(sink: MemorySink, coverage_spans: CoverageSpans) -> StepRows:
    clock = WallClock()
    clock.add_pair(1, 1)
    return StepRows(
        sink,
        clock,
        numbers_of=lambda slots: [1] * len(slots),
        gpus_of=lambda devices: devices,
        coverage_spans=coverage_spans,
    )


def type_of(batch: Array, without: Sequence[str] = ()) -> str:
    (found,) = maker(MemorySink(), traced(without=without)).types(batch)
    return found


def test_a_row_adds_up_to_its_step() -> None:
    (row,) = rows(steps(1))
    clocks = sum(row[f"{part}_{clock}_ns"] for part in ("host", "blocked") for clock in STATES)
    assert clocks == row["end_ns"] - row["start_ns"] == 10_000_000
    assert sum(row[f"blocked_{kind}_ns"] for kind in BLOCKED_KINDS) == 1_000_000


@pytest.mark.parametrize(("measured_ns", "shared_ns"), [(2_000_000, 2_000_000), (9_000_000, 3_000_000)])
def test_a_sleeper_is_blocked_with_the_thread_that_launches_for_it(measured_ns: int, shared_ns: int) -> None:
    """As long as was measured; more than it slept only if its sleep was repaired."""
    batch = steps(1)
    batch["shared_ns"][:, BLOCKED_KINDS.index("launch")] = measured_ns
    host, blocked, kinds = with_other_threads(batch)
    assert host[0, SLEEP] == 3_000_000 - shared_ns
    assert blocked[0, SLEEP] == kinds[0, BLOCKED_KINDS.index("launch")] == shared_ns
    assert host.sum() + blocked.sum() == 10_000_000
    assert kinds.sum() == blocked.sum()


def test_steps_of_other_work_have_another_type() -> None:
    batch = steps(3)
    batch["launches"][1], batch["copies"][2] = 154, 2
    types = [row["step_type"] for row in rows(batch)]
    assert len(set(types)) == 3
    assert type_of(batch[:1]) == "153 launches, 1 copies, from cudaMemcpyAsync"


@pytest.mark.parametrize(
    ("without", "told"),
    [
        (["launches"], "launches not traced, 1 copies, from cudaMemcpyAsync"),
        (["launches", "copies"], "launches not traced, copies not traced, from cudaMemcpyAsync"),
    ],
)
def test_what_was_not_traced_is_no_zero(without: list[str], told: str) -> None:
    batch = steps(2)
    batch["launches"], batch["copies"] = [0, 12], [1, 1]  # of the second some were seen before they were given up
    assert {type_of(batch[at : at + 1], without) for at in (0, 1)} == {told}
    assert all(row["flags"] & SyncIntervalFlag.LAUNCHES_UNSEEN for row in rows(batch, without=without))


def test_a_step_without_launches_has_none() -> None:
    batch = steps(1)
    batch["launches"] = 0
    assert type_of(batch) == "0 launches, 1 copies, from cudaMemcpyAsync"
    assert not rows(batch)[0]["flags"] & SyncIntervalFlag.LAUNCHES_UNSEEN


def test_a_step_that_a_sync_of_its_stream_ends_says_both() -> None:
    batch = steps(2)
    batch["is_synced"][1] = 1
    numbers = [row["how"] for row in rows(batch)]
    assert numbers[0] != numbers[1]


def test_only_a_launch_names_a_kernel() -> None:
    batch = steps(2)
    batch["function"], batch["op"][1] = 1, LAUNCH
    assert [row["function"] for row in rows(batch)] == [0, 1]


def test_whether_launches_waited_or_were_slow_may_not_be_known() -> None:
    batch = steps(2)
    batch["is_queue_unknown"][1] = 1
    assert [bool(row["flags"] & SyncIntervalFlag.UNTIMED) for row in rows(batch)] == [False, True]


def test_what_was_not_traced_is_in_the_flags() -> None:
    (row,) = rows(steps(1), changed=True, untimed=True)
    assert row["flags"] == SyncIntervalFlag.STEP | SyncIntervalFlag.COVERAGE_CHANGED | SyncIntervalFlag.UNTIMED
