"""Exponential histograms of durations: buckets, packing, merging, percentiles.

Scale 3 of the OpenTelemetry exponential histogram (base 2^(1/8)): bucket 0 holds durations below 128 ns, then every
octave has eight buckets, (2^(n + k/8), 2^(n + (k+1)/8)] ns; an exact power of two opens its octave's first bucket. 256
buckets reach 2^38.75 ns (460 s); the last also holds everything longer.

Source: OpenTelemetry specification, metrics data model, ExponentialHistogram.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

BUCKETS = 256
FIRST_OCTAVE = 7  # 2^7 = 128 ns; a uprobe's own cost is above it
PER_OCTAVE = 8  # buckets per octave: scale 3

Counts = npt.NDArray[np.int64]

_PACKED = np.dtype([("bucket", "u1"), ("count", "<u4")])
_COUNT_MAX = 2**32 - 1
_MANTISSA_BOUNDS = 2.0 ** (np.arange(1, PER_OCTAVE) / PER_OCTAVE)
_EDGES_NS = np.concatenate(
    ([0.0], 2.0 ** (FIRST_OCTAVE + np.arange(BUCKETS - 1) / PER_OCTAVE), [np.inf])
)  # BUCKETS + 1 edges


def bucket_index(duration_ns: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """The bucket of each duration in ns."""
    value = np.asarray(duration_ns, dtype=np.float64)
    mantissa, exponent = np.frexp(value)  # mantissa in [0.5, 1)
    within = np.searchsorted(_MANTISSA_BOUNDS, mantissa * 2, side="left")
    index = (exponent.astype(np.int64) - 1 - FIRST_OCTAVE) * PER_OCTAVE + within + 1
    return np.where(value < 2**FIRST_OCTAVE, 0, np.minimum(index, BUCKETS - 1))


def bounds_ns(bucket: int) -> tuple[float, float]:
    """Lower and upper bound of a bucket in ns; the last bucket's upper bound is infinite."""
    return float(_EDGES_NS[bucket]), float(_EDGES_NS[bucket + 1])


def count(duration_ns: npt.ArrayLike) -> Counts:
    """The histogram of durations in ns, shape (256,)."""
    return np.bincount(bucket_index(duration_ns), minlength=BUCKETS).astype(np.int64)


def pack(counts: npt.ArrayLike) -> bytes:
    """Counts, shape (256,), as the sparse bytes of column `histogram`: (bucket u8, count u32 little-endian) each."""
    dense = np.asarray(counts, dtype=np.int64)
    buckets = np.flatnonzero(dense)
    packed = np.empty(len(buckets), dtype=_PACKED)
    packed["bucket"] = buckets
    packed["count"] = np.minimum(dense[buckets], _COUNT_MAX)
    rest = dense - np.minimum(dense, _COUNT_MAX)
    return packed.tobytes() + (pack(rest) if rest.any() else b"")


def merge(packed: Iterable[bytes]) -> Counts:
    """The sum of packed histograms, shape (256,)."""
    pairs = np.frombuffer(b"".join(packed), dtype=_PACKED)
    counts = np.zeros(BUCKETS, dtype=np.int64)
    np.add.at(counts, pairs["bucket"], pairs["count"].astype(np.int64))
    return counts


def percentiles(counts: Counts, quantiles: Sequence[float], *, max_ns: float | None = None) -> list[float]:
    """The durations in ns below which the given shares (0-1) of the counted durations lie.

    Inside a bucket the logarithm is interpolated (in bucket 0 the duration), so the error is at most one bucket, 9%.
    `max_ns`, the longest duration, bounds the answer; without it the last bucket counts as one bucket wide.

    Raises:
        ValueError: nothing was counted.
    """
    total = int(counts.sum())
    if total == 0:
        raise ValueError("percentile of an empty histogram")
    cumulative = np.cumsum(counts)
    return [_percentile(counts, cumulative, quantile * total, max_ns) for quantile in quantiles]


def _percentile(counts: Counts, cumulative: Counts, rank: float, max_ns: float | None) -> float:
    bucket = int(np.searchsorted(cumulative, max(rank, 1), side="left"))
    lower, upper = bounds_ns(bucket)
    if np.isinf(upper):
        upper = lower * 2 ** (1 / PER_OCTAVE) if max_ns is None else max(max_ns, lower)
    inside = (rank - (cumulative[bucket] - counts[bucket])) / counts[bucket]
    share = min(max(float(inside), 0.0), 1.0)
    value = lower + share * (upper - lower) if bucket == 0 else lower * (upper / lower) ** share
    return value if max_ns is None else min(value, max_ns)
