"""A CPU time budget: a share of a core whose unused part is saved for later."""

from __future__ import annotations

import time
from collections.abc import Callable


class CpuAllowance:
    """CPU seconds that may be spent. share: of a core, in the long run. most_s: most that is saved; half at first."""

    def __init__(self, share: float, *, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share, self._most_s, self._clock = share, most_s, clock
        self._left_s = most_s / 2
        self._at_s = clock()

    @property
    def is_half_left(self) -> bool:
        """Whether half of the maximum is left: work that can wait leaves that much for work that cannot."""
        return self._left_s + self._share * (self._clock() - self._at_s) >= self._most_s / 2

    def spend(self, spent_s: float) -> float:
        """Spends CPU seconds; returns for how many seconds to pause until nothing is owed."""
        now_s = self._clock()
        self._left_s = min(self._left_s + self._share * (now_s - self._at_s), self._most_s) - spent_s
        self._at_s = now_s
        return max(0.0, -self._left_s / self._share)
