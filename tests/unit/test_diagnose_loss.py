"""Loss is end to end and signed; its parts add up, and the host owns only what it alone would have caused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingero.diagnose.case_search import at_most_idle
from ingero.diagnose.loss import Reference, host_paced_ns, loss, references
from ingero.diagnose.model import Bucket, Part
from ingero.diagnose.utilization import Utilization
from ingero.store.arrays import CHECKPOINTS, EPOCH_DTYPE

MS = 1_000_000
LAUNCHES = 8


def epochs(
    count: int, *, empty: float = 1, busy: float = 6, late: float = 0, enqueue: float = 1, **fields: Any
) -> np.ndarray[Any, Any]:
    """Equal epochs, in ms; launches are even over `enqueue` ms after the first."""
    made = np.zeros(count, EPOCH_DTYPE)
    e, x, p, launching = (round(value * MS) for value in (empty, busy, late, enqueue))
    made["a_ns"] = np.arange(count) * (e + x + p)
    made["f_ns"] = made["a_ns"] + e
    made["s_ns"] = made["f_ns"] + launching
    made["r_ns"] = made["f_ns"] + x
    made["b_ns"] = made["r_ns"] + p
    made["e_ns"], made["x_ns"], made["p_ns"] = e, x, p
    made["class_key"], made["launches"], made["checkpoint_step"] = 1, LAUNCHES, 1
    made["checkpoint_ns"] = made["f_ns"][:, None] + np.arange(CHECKPOINTS) * (launching // LAUNCHES)
    for name, value in fields.items():
        made[name] = value
    return made


def usual(**parts: float) -> dict[int, Reference]:
    return references(epochs(40, **parts))


def test_a_stretch_like_the_baseline_lost_nothing() -> None:
    found = loss(epochs(30), usual())
    assert found.loss_ns == 0
    assert found.epochs == 30
    assert found.wall_ns == 30 * 7 * MS


@pytest.mark.parametrize(("part", "name"), [("empty", "empty_ns"), ("busy", "busy_ns"), ("late", "late_ns")])
def test_loss_is_charged_to_the_part_that_grew(part: str, name: str) -> None:
    found = loss(epochs(30, **{part: 9}), usual())
    grown = 9 - {"empty": 1, "busy": 6, "late": 0}[part]
    assert found.loss_ns == getattr(found, name) == 30 * grown * MS


def test_catching_up_repays_a_loss() -> None:
    stretch = np.concatenate([epochs(10, empty=3), epochs(10, empty=0.5)])
    assert loss(stretch, usual()).loss_ns == 10 * 2 * MS - 10 * MS // 2


def test_one_outlier_in_the_baseline_does_not_move_the_reference() -> None:
    disturbed = references(np.concatenate([epochs(40), epochs(1, late=2000)]))
    assert loss(epochs(30), disturbed).loss_ns == 0


def test_each_class_is_measured_by_itself() -> None:
    baseline = np.concatenate([epochs(40), epochs(25, busy=12, class_key=2)])
    stretch = np.concatenate([epochs(5), epochs(5, busy=13, class_key=2)])
    assert loss(stretch, references(baseline)).busy_ns == 5 * MS


def test_a_class_without_a_reference_is_counted_and_not_judged() -> None:
    found = loss(np.concatenate([epochs(10), epochs(5, late=50, class_key=2)]), usual())
    assert found.loss_ns == 0
    assert (found.epochs, found.unjudged, found.unjudged_ns) == (10, 5, 5 * 57 * MS)


def test_a_class_has_no_reference_before_twenty_epochs() -> None:
    assert references(epochs(19)) == {}
    assert set(references(epochs(20))) == {1}


def test_nothing_is_lost_in_no_epochs() -> None:
    assert loss(epochs(0), usual()).loss_ns == 0
    assert loss(epochs(0), {}).loss_ns == 0
    assert references(epochs(0)) == {}


def test_noise_is_the_median_deviation_of_the_class() -> None:
    baseline = np.concatenate([epochs(20, empty=0), epochs(20, empty=1), epochs(20, empty=2)])
    reference = references(baseline)[1]
    assert reference.noise_ratio == pytest.approx(1 / 7)
    assert loss(epochs(30), {1: reference}).noise_ns == 30 * MS


def test_a_class_that_does_other_work_each_time_cannot_judge_the_device() -> None:
    assert usual()[1].can_judge_device
    lengths = np.concatenate([epochs(10, busy=busy) for busy in (2, 6, 10, 14)])
    assert not references(lengths)[1].can_judge_device


def test_a_slower_device_is_not_the_hosts() -> None:
    found = loss(epochs(30, busy=10), usual())
    assert found.busy_ns == 30 * 4 * MS
    assert found.host_low_ns == found.host_high_ns == 0


def test_launches_slower_than_the_device_are_the_hosts() -> None:
    found = loss(epochs(30, busy=9, enqueue=9), usual())
    assert found.busy_ns == found.host_low_ns == found.host_high_ns == 30 * 3 * MS


def test_slow_launches_that_the_device_hides_cost_nothing() -> None:
    found = loss(epochs(30, enqueue=5), usual())
    assert found.loss_ns == found.host_low_ns == found.host_high_ns == 0


def test_a_stop_between_launches_is_replayed_against_the_usual_device() -> None:
    stopped = epochs(30, busy=12, enqueue=9)
    stopped["checkpoint_ns"][:] = stopped["f_ns"][:, None]
    stopped["checkpoint_ns"][:, 4:] += 8 * MS  # half of the work was launched at once, the rest 8 ms later
    found = loss(stopped, usual())
    assert found.host_low_ns == 30 * (8 + 3 - 6) * MS
    assert found.host_high_ns == 30 * 6 * MS
    assert found.busy_ns == 30 * 6 * MS


def test_a_host_that_kept_up_is_paced_by_the_device() -> None:
    assert host_paced_ns(epochs(1), 6.0 * MS).tolist() == [6 * MS]


parts = st.tuples(*(st.integers(0, 50) for _ in range(3)))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # others use the CPUs, too
@given(st.lists(parts, min_size=20, max_size=40), st.lists(parts, min_size=1, max_size=20))
def test_parts_add_up_to_the_growth_of_the_length(
    baseline: list[tuple[int, int, int]], stretch: list[tuple[int, int, int]]
) -> None:
    def made(lengths: list[tuple[int, int, int]]) -> np.ndarray[Any, Any]:
        return np.concatenate([epochs(1, empty=e, busy=x, late=p, enqueue=x / 2) for e, x, p in lengths])

    known = references(made(baseline))
    found = loss(made(stretch), known)
    median_ms = float(np.median([sum(lengths) for lengths in baseline]))
    expected_ns = sum(sum(lengths) - median_ms for lengths in stretch) * MS
    assert found.loss_ns == pytest.approx(expected_ns, abs=2)
    assert found.host_low_ns <= found.host_high_ns


USED = Utilization(share=0.7, error=0.05, is_shared=False)


@pytest.mark.parametrize(
    ("used", "enqueuing_ns"),
    [
        (None, 800),
        (USED, 250),  # 35 of 100 may have been idle, 10 of them with nothing enqueued
        (replace(USED, is_shared=True), 250),
        (replace(USED, share=0.02), 800),
        (replace(USED, share=1.0), 0),
    ],
)
def test_a_host_that_is_too_slow_is_charged_with_what_nvml_leaves_idle(
    used: Utilization | None, enqueuing_ns: int
) -> None:
    lost = {Bucket(Part.EMPTY, "run"): 100, Bucket(Part.ENQUEUE, "run"): 800}
    found = at_most_idle(lost, 1000, used)
    assert found == {Bucket(Part.EMPTY, "run"): 100, Bucket(Part.ENQUEUE, "run"): pytest.approx(enqueuing_ns, abs=1)}


def test_waits_of_a_step_while_nvml_sees_the_gpu_at_work_are_nobodys() -> None:
    """A loop that waits for data 45 of 100, with a GPU that has work queued all the while."""
    lost = {Bucket(Part.EMPTY, "sleep"): 400, Bucket(Part.EMPTY, "runq"): 50}
    found = at_most_idle(lost, 1000, replace(USED, share=0.98), frozenset(Part))
    assert sum(found.values()) == pytest.approx(70, abs=2)  # what NVML leaves, and what it may be wrong by
