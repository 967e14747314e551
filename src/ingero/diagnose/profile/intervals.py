"""Sets of disjoint time intervals, and how much of any time range they cover."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_NONE: Array = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Disjoint intervals in order.

    covered_ns: cumulative length of the intervals before each one, with the total at the end (one entry more).
    """

    begins: Array
    ends: Array
    covered_ns: Array

    @property
    def total_ns(self) -> int:
        """Total length of the intervals."""
        return int(self.covered_ns[-1])

    def until(self, times: Array) -> Array:
        """How much time the intervals cover before each of these times."""
        if not len(self.begins):
            return np.zeros(len(times), np.int64)
        place = np.searchsorted(self.begins, times, "right") - 1
        last = np.maximum(place, 0)
        inside = np.clip(times - self.begins[last], 0, (self.ends - self.begins)[last])
        found: Array = np.where(place < 0, 0, self.covered_ns[last] + inside)
        return found

    def between(self, begins: Array, ends: Array) -> Array:
        """How much of each time range the intervals cover; 0 for a range that ends before it begins."""
        found: Array = self.until(np.maximum(begins, ends)) - self.until(begins)
        return found

    def of(self, begin_ns: int, end_ns: int) -> int:
        """How much of one time range the intervals cover."""
        return int(self.between(np.array([begin_ns]), np.array([end_ns]))[0])

    def gaps(self) -> tuple[Array, Array]:
        """Begins and ends of the gaps between the intervals."""
        return self.ends[:-1], self.begins[1:]

    def union(self, other: Intervals) -> Intervals:
        """The time that either set covers."""
        return united(np.concatenate([self.begins, other.begins]), np.concatenate([self.ends, other.ends]))


def united(begins: Array, ends: Array) -> Intervals:
    """The union of intervals that may overlap; those that are empty or end before they begin are left out."""
    is_real = ends > begins
    begins, ends = begins[is_real], ends[is_real]
    if not len(begins):
        return Intervals(_NONE, _NONE, np.zeros(1, np.int64))
    order = np.argsort(begins, kind="stable")
    begins, reached = begins[order], np.maximum.accumulate(ends[order])
    is_first = np.concatenate([[True], begins[1:] > reached[:-1]])
    is_last = np.concatenate([is_first[1:], [True]])
    begins, ends = begins[is_first], reached[is_last]
    return Intervals(begins, ends, np.concatenate([[0], np.cumsum(ends - begins)]))
