"""Buckets, packing and percentiles of durations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.store import histograms

DURATIONS = st.lists(st.integers(0, 10**11), min_size=1, max_size=300)


def bucket_by_definition(duration_ns: int) -> int:
    """Integer arithmetic only: v > 2^(n + j/8) is v^8 > 2^(8n + j)."""
    if duration_ns < 128:
        return 0
    octave = duration_ns.bit_length() - 1
    exceeded = sum(duration_ns**8 > 2 ** (8 * octave + j) for j in range(1, 8))
    return int(min((octave - 7) * 8 + exceeded + 1, 255))


@given(DURATIONS)
def test_bucket_follows_the_definition_in_integer_arithmetic(durations: list[int]) -> None:
    assert histograms.bucket_index(durations).tolist() == [bucket_by_definition(d) for d in durations]


@pytest.mark.parametrize("octave", range(7, 38))
def test_bucket_is_right_on_both_sides_of_every_bound(octave: int) -> None:
    for eighth in range(8):
        bound = math.isqrt(math.isqrt(math.isqrt(2 ** (8 * octave + eighth))))  # floor of 2^(octave + eighth / 8)
        for duration in (bound - 1, bound, bound + 1):
            assert histograms.bucket_index(duration) == bucket_by_definition(duration)


def test_bounds_of_neighbouring_buckets_meet() -> None:
    bounds = [histograms.bounds_ns(bucket) for bucket in range(histograms.BUCKETS)]
    assert bounds[0] == (0, 128)
    assert bounds[9][0] == 256
    assert all(left[1] == right[0] for left, right in itertools.pairwise(bounds))
    assert math.isinf(bounds[-1][1])


def test_durations_past_the_last_bound_share_the_last_bucket() -> None:
    assert histograms.bucket_index([10**15, 2**62]).tolist() == [255, 255]


@given(st.lists(DURATIONS, min_size=1, max_size=5))
def test_merged_histograms_equal_the_histogram_of_everything(parts: list[list[int]]) -> None:
    merged = histograms.merge(histograms.pack(histograms.count(part)) for part in parts)
    assert merged.tolist() == histograms.count([d for part in parts for d in part]).tolist()


def test_counts_past_32_bits_survive_packing() -> None:
    counts = np.zeros(histograms.BUCKETS, dtype=np.int64)
    counts[7], counts[255] = 2**34 + 5, 3
    assert histograms.merge([histograms.pack(counts)]).tolist() == counts.tolist()


def test_nothing_packs_to_nothing() -> None:
    assert histograms.pack(np.zeros(histograms.BUCKETS, dtype=np.int64)) == b""
    assert histograms.merge([]).sum() == 0


@pytest.mark.parametrize("seed", range(4))
def test_percentiles_of_merged_histograms_are_within_a_bucket_of_numpys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.lognormal(mean, 1.5, 20_000).astype(np.int64) for mean in (8, 11, 13)]
    merged = histograms.merge(histograms.pack(histograms.count(part)) for part in parts)
    exact = np.percentile(np.concatenate(parts), [50, 95, 99])
    assert histograms.percentiles(merged, [0.5, 0.95, 0.99]) == pytest.approx(exact, rel=2 ** (1 / 8) - 1)


def test_interpolation_inside_a_bucket_beats_its_width() -> None:
    durations = np.random.default_rng(1).lognormal(12, 1, 200_000).astype(np.int64)
    exact = np.percentile(durations, [25, 50, 75])
    assert histograms.percentiles(histograms.count(durations), [0.25, 0.5, 0.75]) == pytest.approx(exact, rel=0.01)


def test_percentile_never_exceeds_the_longest_duration() -> None:
    counts = histograms.count([1000, 1001])
    assert histograms.percentiles(counts, [1.0], max_ns=1001) == [1001]


def test_percentile_in_the_last_bucket_reaches_the_longest_duration() -> None:
    assert histograms.percentiles(histograms.count([10**13]), [1.0], max_ns=1e13) == pytest.approx([1e13])


def test_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        histograms.percentiles(histograms.count(np.array([], dtype=np.int64)), [0.5])
