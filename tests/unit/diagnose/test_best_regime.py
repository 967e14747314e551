"""The best regime of a loop whose steps differ by chance is not its luckiest second."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingero.diagnose.lost_time.best_regime import class_references
from ingero.diagnose.lost_time.time_ranges import MIN_LOST_RATIO, excess_ns, losing_ranges, starts_losing_time
from ingero.store.arrays import arrays

Array = np.ndarray[Any, np.dtype[Any]]

STEP_NS = 10_000_000
SPREAD = 0.3  # sigma of the logarithm: requests and sequences of many lengths


def gpu_stream(lengths_ns: Array) -> Array:
    """Sync intervals of these lengths, one after the other."""
    sync_intervals = np.zeros(len(lengths_ns), arrays.GPU_STREAM_DTYPE)
    sync_intervals["sync_end_ns"] = 1_760_000_000_000_000_000 + np.cumsum(lengths_ns.astype(np.int64))
    sync_intervals["prev_sync_end_ns"] = sync_intervals["first_launch_ns"] = sync_intervals[
        "sync_end_ns"
    ] - lengths_ns.astype(np.int64)
    sync_intervals["sync_start_ns"] = sync_intervals["gpu_done_ns"] = sync_intervals["sync_end_ns"]
    sync_intervals["busy_ns"] = sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]
    sync_intervals["step_type"] = 1
    return sync_intervals


def steps(seed: int, count: int = 12_000) -> Array:
    """Two minutes of steps of different lengths."""
    lengths: Array = STEP_NS * np.exp(SPREAD * np.random.default_rng(seed).standard_normal(count))
    return lengths


@pytest.mark.parametrize("seed", range(6))
def test_steps_of_different_lengths_lose_nothing(seed: int) -> None:
    sync_intervals = gpu_stream(steps(seed))
    references = class_references(sync_intervals)
    assert losing_ranges(sync_intervals, references, excess_ns(sync_intervals, references)) == []


@pytest.mark.parametrize("ms", [7, 30])
@pytest.mark.parametrize("long", [0.3, 0.5, 0.7])
def test_steps_that_are_short_or_long_by_chance_lose_nothing_as_they_are_looked_at(ms: float, long: float) -> None:
    """Each half second, when the newest sync intervals are few: most of them may be short."""
    is_long = np.random.default_rng(1).random(round(20_000 / ms)) < long
    sync_intervals = gpu_stream(np.where(is_long, 1.2, 0.8) * ms * 1e6)
    told = []
    for until_s in np.arange(3, 16, 0.5):
        seen = sync_intervals[sync_intervals["sync_end_ns"] < sync_intervals["prev_sync_end_ns"][0] + until_s * 1e9]
        references = class_references(seen)
        told += losing_ranges(seen, references, excess_ns(seen, references))
    assert told == []


def test_a_slower_half_minute_of_such_steps_is_seen() -> None:
    lengths = steps(0)
    lengths[6000:8000] *= 1.4
    sync_intervals = gpu_stream(lengths)
    references = class_references(sync_intervals)
    (found,) = losing_ranges(sync_intervals, references, excess_ns(sync_intervals, references))
    assert found.lost_ratio == pytest.approx(0.4 / 1.4, rel=0.15)


def steady(seconds: float, ms: float) -> Array:
    """Steps that all take about as long."""
    lengths: Array = np.random.default_rng(1).normal(ms, 0.01 * ms, round(1000 * seconds / ms)) * 1e6
    return lengths


def time_ranges(*parts: Array, apart_s: float = 0.0) -> list[tuple[float, float]]:
    """From when to when time was lost, s after the begin."""
    sync_intervals = gpu_stream(np.concatenate(parts))
    references = class_references(sync_intervals)
    begin = sync_intervals["prev_sync_end_ns"][0]
    apart_ns = int(begin) + int(apart_s * 1e9)
    found = [
        one.window
        for one in losing_ranges(sync_intervals, references, excess_ns(sync_intervals, references), apart_ns=apart_ns)
    ]
    return [((one.begin_ns - begin) / 1e9, (one.end_ns - begin) / 1e9) for one in found]


def test_a_little_that_was_lost_some_seconds_before_is_no_part_of_a_loss() -> None:
    (found,) = time_ranges(steady(2, 7.28), steady(3, 7), steady(6, 8.4), steady(2, 7))
    assert found == pytest.approx((5, 11), abs=0.1)


def test_the_end_of_something_slow_is_no_regime_but_what_follows_it_is_as_soon_as_it_is_enough() -> None:
    """Ten slow seconds, and some healthy steps in the newest chunk: its mean lies between, which no step does."""
    slow, healthy = steady(10, 13.5), steady(5, 7)
    for seen_s, ms in ((0.1, 13.5), (0.2, 13.5), (0.3, 13.5), (0.5, 13.5), (0.8, 7), (1.1, 7), (5, 7)):
        references = class_references(gpu_stream(np.concatenate([slow, healthy])[: len(slow) + round(seen_s / 0.007)]))
        assert references[1].reference.t_ns == pytest.approx(ms * 1e6, rel=0.01), seen_s


def test_what_is_as_fast_at_its_end_as_ever_and_slow_before_is_a_regime_as_it_was() -> None:
    """The first chunk is whole and holds the beginning of something slow: nothing else says what was healthy."""
    references = class_references(gpu_stream(np.concatenate([steady(1.2, 7), steady(8, 13.5)])))
    assert references[1].reference.t_ns < 10e6


def test_losses_that_come_and_go_are_one_time_range() -> None:
    (found,) = time_ranges(steady(4, 7), *[steady(1, 10), steady(2, 7)] * 3, steady(3, 7))
    assert found == pytest.approx((4, 11), abs=0.1)


def test_losses_before_and_after_a_moment_are_two_time_ranges_if_a_quiet_second_lies_between() -> None:
    """The recorder's start, and what came later; a lost time that goes on through that moment is one."""
    found = time_ranges(steady(2, 8), steady(3, 7), steady(6, 8.4), steady(2, 7), apart_s=2.5)
    assert found == [pytest.approx((0, 2), abs=0.1), pytest.approx((5, 11), abs=0.1)]
    (found,) = time_ranges(steady(6, 8), steady(3, 7), steady(6, 8.4), steady(2, 7), apart_s=2.5)
    assert found == pytest.approx((0, 15), abs=0.1)


def test_single_stalls_seconds_apart_are_looked_at_together() -> None:
    stalls = [one for _ in range(8) for one in (np.array([127e6]), steady(2.88, 7))]
    (found,) = time_ranges(steady(6, 7), *stalls, steady(4, 7))
    assert found == pytest.approx((6, 27), abs=0.2)


def test_one_longer_stall_does_not_hide_the_others_around_it() -> None:
    """Each too short to be a finding, but for one: that alone is too little of half a minute to be told."""
    lengths = [200, 200, 200, 200, 320, 200, 200, 200, 200, 200]
    stalls = [one for ms in lengths for one in (np.array([ms * 1e6]), steady(2.88, 50))]
    (found,) = time_ranges(steady(6, 50), *stalls, steady(4, 50))
    assert found == pytest.approx((6, 34), abs=0.4)


def uneasy(seconds: int) -> list[Array]:
    """Two of five seconds lose a little: too little to be told, and too often for a quiet time between."""
    return [steady(3, 7), steady(2, 7.32)] * (seconds // 5)


def test_a_loss_amid_minutes_of_a_little_is_weighed_against_a_minute() -> None:
    sync_intervals = gpu_stream(np.concatenate([*uneasy(300), steady(6, 14), *uneasy(300)]))
    references = class_references(sync_intervals)
    (found,) = losing_ranges(sync_intervals, references, excess_ns(sync_intervals, references))
    assert found.window.duration_ns < 10e9
    assert found.lost_ns > MIN_LOST_RATIO * found.surrounding_wall_ns


@pytest.mark.parametrize(
    ("step_ms", "stall_ms", "is_told"), [(7, 120, True), (7, 90, False), (30, 120, False), (30, 160, True)]
)
def test_one_stall_is_told_that_five_steps_would_have_fitted_into(
    step_ms: float, stall_ms: float, is_told: bool
) -> None:
    assert bool(time_ranges(steady(6, step_ms), np.array([(step_ms + stall_ms) * 1e6]), steady(6, step_ms))) is is_told


def test_two_losses_far_apart_are_not_thinned_by_the_little_between_them() -> None:
    found = time_ranges(*uneasy(50), steady(6, 14), *uneasy(600), steady(6, 14), *uneasy(50))
    assert [begin for begin, _ in found] == pytest.approx([50, 656], abs=2.5)


def begins(*parts: Array, since_s: float = 0.0) -> bool:
    sync_intervals = gpu_stream(np.concatenate(parts))
    references = class_references(sync_intervals)
    excess = excess_ns(sync_intervals, references)
    told = losing_ranges(sync_intervals, references, excess)
    since_ns = int(sync_intervals["prev_sync_end_ns"][0]) + int(since_s * 1e9)
    return starts_losing_time(sync_intervals, references, excess, told, since_ns=since_ns)


def test_a_loss_that_is_too_little_yet_to_be_told_is_seen_to_begin() -> None:
    assert begins(steady(10, 7), steady(1.2, 7.5))
    assert not begins(steady(11, 7))


def test_nothing_begins_that_is_told_or_over_or_was_there_before() -> None:
    assert not begins(steady(10, 7), steady(4, 8))
    assert not begins(steady(10, 7), steady(1.2, 7.5), steady(3, 7))
    assert not begins(steady(10, 7), steady(1.2, 7.5), since_s=10.5)
