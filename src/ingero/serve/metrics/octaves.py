"""Histograms with one bucket per octave, for readers that do not support exponential ones.

The bounds are the recording's own, 128 ns to 275 s: all eight buckets of each octave would be thousands of series. A
duration of exactly a bound stands in the bucket above it.
"""

from __future__ import annotations

import numpy as np

from ingero.serve.metrics.registry import HistogramSum
from ingero.store.histograms import BUCKETS, PER_OCTAVE, bounds_ns

_LAST_OF_OCTAVES = np.arange(0, BUCKETS - 1, PER_OCTAVE)  # bucket 0 ends at 128 ns, the next octave with bucket 8
BOUNDS_S = tuple(round(bounds_ns(int(bucket))[1]) / 1e9 for bucket in _LAST_OF_OCTAVES)


def cumulated(value: HistogramSum) -> list[int]:
    """Cumulative counts: durations below each bound, and last the total."""
    counts = np.cumsum(value.counts)
    return [*counts[_LAST_OF_OCTAVES].tolist(), int(counts[-1])]
