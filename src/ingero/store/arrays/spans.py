"""Sets of many time ranges: a baseline may consist of thousands of short ones, between other work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]


def joined(windows: Iterable[Window], *, apart_ns: int = 0) -> tuple[Window, ...]:
    """The union of windows, in order; windows within apart_ns of each other become one."""
    found: list[Window] = []
    for window in sorted(windows, key=lambda window: window.begin_ns):
        if found and window.begin_ns <= found[-1].end_ns + apart_ns:
            found[-1] = Window(begin_ns=found[-1].begin_ns, end_ns=max(found[-1].end_ns, window.end_ns))
        else:
            found.append(window)
    return tuple(found)


def left_out(window: Window, others: Iterable[Window]) -> tuple[Window, ...]:
    """The parts of a window that are in none of the others, in order."""
    found: list[Window] = []
    begin_ns = window.begin_ns
    for one in joined(others):
        if one.begin_ns > begin_ns:
            found.append(Window(begin_ns=begin_ns, end_ns=min(one.begin_ns, window.end_ns)))
        begin_ns = max(begin_ns, one.end_ns)
        if begin_ns >= window.end_ns:
            return tuple(found)
    return (*found, Window(begin_ns=begin_ns, end_ns=window.end_ns))


def length_ns(windows: Iterable[Window]) -> int:
    """Total length of the windows."""
    return sum(window.duration_ns for window in windows)


class Spans:
    """Time ranges without overlaps, in order."""

    def __init__(self, windows: Iterable[Window]) -> None:
        self.windows = joined(windows)
        self._begins = np.array([window.begin_ns for window in self.windows], np.int64)
        self._lengths = np.array([window.duration_ns for window in self.windows], np.int64)
        self._before = np.concatenate(([0], np.cumsum(self._lengths)))

    def near(self, apart_ns: int) -> tuple[Window, ...]:
        """Merge ranges no further apart than apart_ns, so that they can be read at once."""
        return joined(self.windows, apart_ns=apart_ns)

    def shares(self, begins_ns: Array, ends_ns: Array) -> Array:
        """The share of each time range that the spans cover, 0 to 1."""
        shares: Array = self._covered_ns(begins_ns, ends_ns) / np.maximum(ends_ns - begins_ns, 1)
        return shares

    def touch(self, begins_ns: Array, ends_ns: Array) -> Array:
        """Whether the spans overlap each time range."""
        touched: Array = self._covered_ns(begins_ns, ends_ns) > 0
        return touched

    def hold(self, begins_ns: Array, ends_ns: Array) -> Array:
        """Whether the spans contain each time range."""
        held: Array = self._covered_ns(begins_ns, ends_ns) == ends_ns - begins_ns
        return held

    def have_inside(self, times_ns: Array) -> Array:
        """Whether each time lies inside a span, not just at its begin."""
        return self.hold(times_ns - 1, times_ns + 1)

    def _covered_ns(self, begins_ns: Array, ends_ns: Array) -> Array:
        covered: Array = self._until(ends_ns) - self._until(begins_ns)
        return covered

    def _until(self, times_ns: Array) -> Array:
        """How much of the spans lies before each time."""
        if not len(self.windows):
            return np.zeros(len(times_ns), np.int64)
        index = np.searchsorted(self._begins, times_ns, side="right") - 1
        last = np.maximum(index, 0)
        within = np.clip(times_ns - self._begins[last], 0, self._lengths[last])
        until: Array = self._before[last] + within
        return until
