"""Lost time is end to end and signed; its parts add up, and the host owns only what it alone would have caused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingero.diagnose.cases.against_zero import capped_by_nvml
from ingero.diagnose.evidence.nvml_utilization import Utilization
from ingero.diagnose.findings import Bucket, Part
from ingero.diagnose.lost_time.end_to_end import Reference, host_paced_ns, lost_time, references
from ingero.store.arrays.arrays import CHECKPOINTS, SYNC_INTERVAL_DTYPE

MS = 1_000_000
LAUNCHES = 8


def sync_intervals(
    count: int, *, empty: float = 1, busy: float = 6, late: float = 0, enqueue: float = 1, **fields: Any
) -> np.ndarray[Any, Any]:
    """Equal sync intervals, in ms; launches are even over `enqueue` ms after the first."""
    made = np.zeros(count, SYNC_INTERVAL_DTYPE)
    e, x, p, launching = (round(value * MS) for value in (empty, busy, late, enqueue))
    made["prev_sync_end_ns"] = np.arange(count) * (e + x + p)
    made["first_launch_ns"] = made["prev_sync_end_ns"] + e
    made["sync_start_ns"] = made["first_launch_ns"] + launching
    made["gpu_done_ns"] = made["first_launch_ns"] + x
    made["sync_end_ns"] = made["gpu_done_ns"] + p
    made["idle_ns"], made["busy_ns"], made["return_delay_ns"] = e, x, p
    made["step_type"], made["launches"], made["checkpoint_step"] = 1, LAUNCHES, 1
    made["checkpoint_ns"] = made["first_launch_ns"][:, None] + np.arange(CHECKPOINTS) * (launching // LAUNCHES)
    for name, value in fields.items():
        made[name] = value
    return made


def usual(**parts: float) -> dict[int, Reference]:
    return references(sync_intervals(40, **parts))


def test_a_time_range_like_the_baseline_lost_nothing() -> None:
    found = lost_time(sync_intervals(30), usual())
    assert found.lost_ns == 0
    assert found.sync_intervals == 30
    assert found.wall_ns == 30 * 7 * MS


@pytest.mark.parametrize(("part", "name"), [("empty", "idle_ns"), ("busy", "busy_ns"), ("late", "return_delay_ns")])
def test_loss_is_charged_to_the_part_that_grew(part: str, name: str) -> None:
    found = lost_time(sync_intervals(30, **{part: 9}), usual())
    grown = 9 - {"empty": 1, "busy": 6, "late": 0}[part]
    assert found.lost_ns == getattr(found, name) == 30 * grown * MS


def test_catching_up_repays_a_loss() -> None:
    time_range = np.concatenate([sync_intervals(10, empty=3), sync_intervals(10, empty=0.5)])
    assert lost_time(time_range, usual()).lost_ns == 10 * 2 * MS - 10 * MS // 2


def test_one_outlier_in_the_baseline_does_not_move_the_reference() -> None:
    disturbed = references(np.concatenate([sync_intervals(40), sync_intervals(1, late=2000)]))
    assert lost_time(sync_intervals(30), disturbed).lost_ns == 0


def test_each_class_is_measured_by_itself() -> None:
    baseline = np.concatenate([sync_intervals(40), sync_intervals(25, busy=12, step_type=2)])
    time_range = np.concatenate([sync_intervals(5), sync_intervals(5, busy=13, step_type=2)])
    assert lost_time(time_range, references(baseline)).busy_ns == 5 * MS


def test_a_class_without_a_reference_is_counted_and_not_judged() -> None:
    found = lost_time(np.concatenate([sync_intervals(10), sync_intervals(5, late=50, step_type=2)]), usual())
    assert found.lost_ns == 0
    assert (found.sync_intervals, found.unjudged, found.unjudged_ns) == (10, 5, 5 * 57 * MS)


def test_a_class_has_no_reference_before_twenty_sync_intervals() -> None:
    assert references(sync_intervals(19)) == {}
    assert set(references(sync_intervals(20))) == {1}


def test_nothing_is_lost_in_no_sync_intervals() -> None:
    assert lost_time(sync_intervals(0), usual()).lost_ns == 0
    assert lost_time(sync_intervals(0), {}).lost_ns == 0
    assert references(sync_intervals(0)) == {}


def test_noise_is_the_median_deviation_of_the_class() -> None:
    baseline = np.concatenate([sync_intervals(20, empty=0), sync_intervals(20, empty=1), sync_intervals(20, empty=2)])
    reference = references(baseline)[1]
    assert reference.noise_ratio == pytest.approx(1 / 7)
    assert lost_time(sync_intervals(30), {1: reference}).noise_ns == 30 * MS


def test_a_class_that_does_other_work_each_time_cannot_judge_the_device() -> None:
    assert usual()[1].can_judge_gpu
    lengths = np.concatenate([sync_intervals(10, busy=busy) for busy in (2, 6, 10, 14)])
    assert not references(lengths)[1].can_judge_gpu


def test_a_slower_device_is_not_the_hosts() -> None:
    found = lost_time(sync_intervals(30, busy=10), usual())
    assert found.busy_ns == 30 * 4 * MS
    assert found.host_low_ns == found.host_high_ns == 0


def test_launches_slower_than_the_device_are_the_hosts() -> None:
    found = lost_time(sync_intervals(30, busy=9, enqueue=9), usual())
    assert found.busy_ns == found.host_low_ns == found.host_high_ns == 30 * 3 * MS


def test_slow_launches_that_the_device_hides_cost_nothing() -> None:
    found = lost_time(sync_intervals(30, enqueue=5), usual())
    assert found.lost_ns == found.host_low_ns == found.host_high_ns == 0


def test_a_stop_between_launches_is_replayed_against_the_usual_device() -> None:
    stopped = sync_intervals(30, busy=12, enqueue=9)
    stopped["checkpoint_ns"][:] = stopped["first_launch_ns"][:, None]
    stopped["checkpoint_ns"][:, 4:] += 8 * MS  # half of the work was launched at once, the rest 8 ms later
    found = lost_time(stopped, usual())
    assert found.host_low_ns == 30 * (8 + 3 - 6) * MS
    assert found.host_high_ns == 30 * 6 * MS
    assert found.busy_ns == 30 * 6 * MS


def test_a_host_that_kept_up_is_paced_by_the_device() -> None:
    assert host_paced_ns(sync_intervals(1), 6.0 * MS).tolist() == [6 * MS]


parts = st.tuples(*(st.integers(0, 50) for _ in range(3)))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # others use the CPUs, too
@given(st.lists(parts, min_size=20, max_size=40), st.lists(parts, min_size=1, max_size=20))
def test_parts_add_up_to_the_growth_of_the_length(
    baseline: list[tuple[int, int, int]], time_range: list[tuple[int, int, int]]
) -> None:
    def made(lengths: list[tuple[int, int, int]]) -> np.ndarray[Any, Any]:
        return np.concatenate([sync_intervals(1, empty=e, busy=x, late=p, enqueue=x / 2) for e, x, p in lengths])

    known = references(made(baseline))
    found = lost_time(made(time_range), known)
    median_ms = float(np.median([sum(lengths) for lengths in baseline]))
    expected_ns = sum(sum(lengths) - median_ms for lengths in time_range) * MS
    assert found.lost_ns == pytest.approx(expected_ns, abs=2)
    assert found.host_low_ns <= found.host_high_ns


USED = Utilization(share=0.7, error=0.05, is_shared=False)


@pytest.mark.parametrize(
    ("used", "enqueuing_ns"),
    [
        (None, 800),
        (USED, 200),  # 30 of 100 idle, as far as is known, 10 of them with nothing enqueued
        (replace(USED, is_shared=True), 200),
        (replace(USED, share=0.02), 800),
        (replace(USED, share=1.0), 0),
    ],
)
def test_a_host_that_is_too_slow_is_charged_with_what_nvml_leaves_idle(
    used: Utilization | None, enqueuing_ns: int
) -> None:
    lost = {Bucket(Part.IDLE, "run"): 100, Bucket(Part.LAUNCH, "run"): 800}
    found = capped_by_nvml(lost, 1000, used)
    assert found == {Bucket(Part.IDLE, "run"): 100, Bucket(Part.LAUNCH, "run"): pytest.approx(enqueuing_ns, abs=1)}


def test_waits_of_a_step_while_nvml_sees_the_gpu_at_work_are_nobodys() -> None:
    """A loop that waits for data 45 of 100, with a GPU that has work queued all the while."""
    lost = {Bucket(Part.IDLE, "sleep"): 400, Bucket(Part.IDLE, "runq"): 50}
    found = capped_by_nvml(lost, 1000, replace(USED, share=0.98), frozenset(Part))
    assert sum(found.values()) == pytest.approx(20, abs=2)
