"""When what is traced changed, or was too little to compare with: time ranges of the monotonic clock."""

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


class ChangedSpans:
    """Stretches in time order, the newest ones; the last may be open."""

    def __init__(self) -> None:
        self._spans: list[list[int]] = []

    def changed(self, begin_ns: int, end_ns: int, *, is_blind: bool = False) -> None:
        """What is traced changed in between. is_blind: and is too little from then on, until the next change."""
        if self._spans and self._spans[-1][1] == _OPEN:
            self._spans[-1][1] = begin_ns
        self._spans.append([begin_ns, _OPEN if is_blind else end_ns])
        del self._spans[:-_KEPT]

    def touch(self, begin_ns: Array, end_ns: Array) -> Array:
        """Which of the time ranges [begin, end] share a moment with one of these."""
        if not self._spans:
            return np.zeros(len(begin_ns), bool)
        begins, ends = np.array(self._spans, np.int64).T
        # spans do not overlap, so that both columns ascend: the first that ends after the begin decides
        first = np.searchsorted(ends, begin_ns)
        is_one = first < len(ends)
        found: Array = is_one & (begins[np.minimum(first, len(ends) - 1)] <= end_ns)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSpans:
    """changed: what is traced changed. In the others something of what marks and counts steps is not known: untimed:
    launches have no durations; without_launches, without_copies: they are not traced at all.
    """

    changed: ChangedSpans = field(default_factory=ChangedSpans)
    untimed: ChangedSpans = field(default_factory=ChangedSpans)
    without_launches: ChangedSpans = field(default_factory=ChangedSpans)
    without_copies: ChangedSpans = field(default_factory=ChangedSpans)
