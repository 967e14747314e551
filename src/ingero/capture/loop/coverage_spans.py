"""Time ranges (monotonic clock) in which tracing coverage changed or was reduced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_OPEN = np.iinfo(np.int64).max

# Of an overhead limiter that tries every two minutes they are thousands a week. What ends after the first one that is
# kept has begun before that one's end if it touches an older one: then it touches this one, too, and the answer is the
# same.
_KEPT = 256


class CoverageChanges:
    """Time ranges of changes in order of time, only the newest ones; the last may be open."""

    def __init__(self) -> None:
        self._time_ranges: list[list[int]] = []

    def changed(self, begin_ns: int, end_ns: int, *, is_blind: bool = False) -> None:
        """Notes that coverage changed in this time. is_blind: it stays too small until the next change."""
        if self._time_ranges and self._time_ranges[-1][1] == _OPEN:
            self._time_ranges[-1][1] = begin_ns
        self._time_ranges.append([begin_ns, _OPEN if is_blind else end_ns])
        del self._time_ranges[:-_KEPT]

    def touch(self, begin_ns: Array, end_ns: Array) -> Array:
        """Which of the time ranges [begin, end] overlap one of the changes."""
        if not self._time_ranges:
            return np.zeros(len(begin_ns), bool)
        begins, ends = np.array(self._time_ranges, np.int64).T
        # spans do not overlap, so that both columns ascend: the first that ends after the begin decides
        first = np.searchsorted(ends, begin_ns)
        is_one = first < len(ends)
        found: Array = is_one & (begins[np.minimum(first, len(ends) - 1)] <= end_ns)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageSpans:
    """Coverage changes by kind. changed: any. In the others, data that marks and counts steps is missing: untimed:
    launches have no durations; without_launches, without_copies: they are not traced at all.
    """

    changed: CoverageChanges = field(default_factory=CoverageChanges)
    untimed: CoverageChanges = field(default_factory=CoverageChanges)
    without_launches: CoverageChanges = field(default_factory=CoverageChanges)
    without_copies: CoverageChanges = field(default_factory=CoverageChanges)
