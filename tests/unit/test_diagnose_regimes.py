"""The best regime of a loop whose steps differ by chance is not its luckiest second."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingero.diagnose.regimes import usual_epochs
from ingero.diagnose.stretches import excess_ns, lossy_stretches
from ingero.store import arrays

Array = np.ndarray[Any, np.dtype[Any]]

STEP_NS = 10_000_000
SPREAD = 0.3  # sigma of the logarithm: requests and sequences of many lengths


def lane(lengths_ns: Array) -> Array:
    """Epochs of these lengths, one after the other."""
    epochs = np.zeros(len(lengths_ns), arrays.LANE_DTYPE)
    epochs["b_ns"] = 1_760_000_000_000_000_000 + np.cumsum(lengths_ns.astype(np.int64))
    epochs["a_ns"] = epochs["f_ns"] = epochs["b_ns"] - lengths_ns.astype(np.int64)
    epochs["s_ns"] = epochs["r_ns"] = epochs["b_ns"]
    epochs["x_ns"] = epochs["b_ns"] - epochs["a_ns"]
    epochs["class_key"] = 1
    return epochs


def steps(seed: int, count: int = 12_000) -> Array:
    """Two minutes of steps of different lengths."""
    lengths: Array = STEP_NS * np.exp(SPREAD * np.random.default_rng(seed).standard_normal(count))
    return lengths


@pytest.mark.parametrize("seed", range(6))
def test_steps_of_different_lengths_lose_nothing(seed: int) -> None:
    epochs = lane(steps(seed))
    usual = usual_epochs(epochs)
    assert lossy_stretches(epochs, usual, excess_ns(epochs, usual)) == []


def test_a_slower_half_minute_of_such_steps_is_seen() -> None:
    lengths = steps(0)
    lengths[6000:8000] *= 1.4
    epochs = lane(lengths)
    usual = usual_epochs(epochs)
    (found,) = lossy_stretches(epochs, usual, excess_ns(epochs, usual))
    assert found.loss_ratio == pytest.approx(0.4 / 1.4, rel=0.15)


def steady(seconds: float, ms: float) -> Array:
    """Steps that all take about as long."""
    lengths: Array = np.random.default_rng(1).normal(ms, 0.01 * ms, round(1000 * seconds / ms)) * 1e6
    return lengths


def stretches(*parts: Array) -> list[tuple[float, float]]:
    """From when to when time was lost, s after the begin."""
    epochs = lane(np.concatenate(parts))
    usual = usual_epochs(epochs)
    begin = epochs["a_ns"][0]
    found = [one.window for one in lossy_stretches(epochs, usual, excess_ns(epochs, usual))]
    return [((one.begin_ns - begin) / 1e9, (one.end_ns - begin) / 1e9) for one in found]


def test_a_little_that_was_lost_some_seconds_before_is_no_part_of_a_loss() -> None:
    (found,) = stretches(steady(2, 7.28), steady(3, 7), steady(6, 8.4), steady(2, 7))
    assert found == pytest.approx((5, 11), abs=0.1)


def test_losses_that_come_and_go_are_one_stretch() -> None:
    (found,) = stretches(steady(4, 7), *[steady(1, 10), steady(2, 7)] * 3, steady(3, 7))
    assert found == pytest.approx((4, 11), abs=0.1)


def test_single_stalls_seconds_apart_are_looked_at_together() -> None:
    stalls = [one for _ in range(8) for one in (np.array([127e6]), steady(2.88, 7))]
    (found,) = stretches(steady(6, 7), *stalls, steady(4, 7))
    assert found == pytest.approx((6, 27), abs=0.2)
