"""Many time ranges asked for at once: a reference may lie in thousands of short ones, between other work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]


def joined(windows: Iterable[Window], *, apart_ns: int = 0) -> tuple[Window, ...]:
    """The same time without overlaps, in order; one window where one follows the other within apart_ns."""
    found: list[Window] = []
    for one in sorted(windows, key=lambda one: one.begin_ns):
        if found and one.begin_ns <= found[-1].end_ns + apart_ns:
            found[-1] = Window(begin_ns=found[-1].begin_ns, end_ns=max(found[-1].end_ns, one.end_ns))
        else:
            found.append(one)
    return tuple(found)


def left_out(window: Window, others: Iterable[Window]) -> tuple[Window, ...]:
    """What of a window is in none of the others, in order."""
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
    """Of all of them together."""
    return sum(one.duration_ns for one in windows)


class Spans:
    """Stretches of time without overlaps, in order."""

    def __init__(self, windows: Iterable[Window]) -> None:
        self.windows = joined(windows)
        self._begins = np.array([one.begin_ns for one in self.windows], np.int64)
        self._lengths = np.array([one.duration_ns for one in self.windows], np.int64)
        self._before = np.concatenate(([0], np.cumsum(self._lengths)))

    def near(self, apart_ns: int) -> tuple[Window, ...]:
        """Longer time ranges around them, for reading at once what lies no further apart."""
        return joined(self.windows, apart_ns=apart_ns)

    def shares(self, begins_ns: Array, ends_ns: Array) -> Array:
        """How much of each of these times lies in them, 0 to 1."""
        shares: Array = self._covered_ns(begins_ns, ends_ns) / np.maximum(ends_ns - begins_ns, 1)
        return shares

    def touch(self, begins_ns: Array, ends_ns: Array) -> Array:
        """Whether some of each of these times lies in them."""
        touched: Array = self._covered_ns(begins_ns, ends_ns) > 0
        return touched

    def hold(self, begins_ns: Array, ends_ns: Array) -> Array:
        """Whether each of these times lies in them as a whole."""
        held: Array = self._covered_ns(begins_ns, ends_ns) == ends_ns - begins_ns
        return held

    def have_inside(self, times_ns: Array) -> Array:
        """Whether each of these moments lies in them, and not just where one begins."""
        return self.hold(times_ns - 1, times_ns + 1)

    def _covered_ns(self, begins_ns: Array, ends_ns: Array) -> Array:
        covered: Array = self._until(ends_ns) - self._until(begins_ns)
        return covered

    def _until(self, times_ns: Array) -> Array:
        """How much of them lies before each moment."""
        if not len(self.windows):
            return np.zeros(len(times_ns), np.int64)
        index = np.searchsorted(self._begins, times_ns, side="right") - 1
        last = np.maximum(index, 0)
        within = np.clip(times_ns - self._begins[last], 0, self._lengths[last])
        until: Array = self._before[last] + within
        return until
