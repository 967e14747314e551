"""Sums of the metrics since the recording began; readers get copies."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingero.serve.metrics.catalogue import METRICS, Metric
from ingero.store.histograms import BUCKETS

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HistogramSum:
    """A histogram of durations in ns: counts by bucket of `store.histograms`, sum and maximum."""

    counts: npt.NDArray[np.int64]
    sum_ns: int = 0
    max_ns: int = 0

    def plus(self, counts: npt.NDArray[np.uint32], sum_ns: int, max_ns: int) -> HistogramSum:
        """This histogram plus more durations."""
        return HistogramSum(self.counts + counts, self.sum_ns + sum_ns, max(self.max_ns, max_ns))


Value = int | float | HistogramSum


@dataclass(frozen=True, slots=True)
class Family:
    """One metric and its values by the values of its labels."""

    metric: Metric
    points: Sequence[tuple[Labels, Value]]


class Registry:
    """The sums of all metrics. Methods may be called in any thread, and wait only for each other."""

    def __init__(self) -> None:
        self.began_ns = time.time_ns()
        self._values: dict[Metric, dict[Labels, Value]] = {}
        self._lock = threading.Lock()

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            values = self._values.setdefault(metric, {})
            before = values.get(labels, 0)
            assert not isinstance(before, HistogramSum)
            values[labels] = before + amount

    def set(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Set a gauge; None: the value is not known, and is left out."""
        with self._lock:
            values = self._values.setdefault(metric, {})
            if value is None:
                values.pop(labels, None)
            else:
                values[labels] = value

    def replace(self, metric: Metric, values: dict[Labels, float]) -> None:
        """Set all values of a gauge; others are removed."""
        with self._lock:
            self._values[metric] = dict(values)

    def observe(self, metric: Metric, counts: npt.NDArray[np.uint32], sum_ns: int, max_ns: int, *labels: str) -> None:
        """Add durations to a histogram."""
        with self._lock:
            values = self._values.setdefault(metric, {})
            before = values.get(labels, HistogramSum(np.zeros(BUCKETS, np.int64)))
            assert isinstance(before, HistogramSum)
            values[labels] = before.plus(counts, sum_ns, max_ns)

    def read(self) -> list[Family]:
        """Every metric that has values, in the order of the table."""
        with self._lock:
            copies = {metric: list(values.items()) for metric, values in self._values.items() if values}
        return [Family(metric, copies[metric]) for metric in METRICS if metric in copies]
