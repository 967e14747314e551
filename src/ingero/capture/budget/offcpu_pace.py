"""Chooses how often the threads' off-CPU buffers are emptied, so that none overflows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

MIN_PERIOD_NS = 20_000_000  # 1,600 intervals a second of one thread that makes no traced calls
MAX_PERIOD_NS = 1_000_000_000
FIRST_PERIOD_NS = 50_000_000
_TARGET_FILL = 1 / 3  # on a busy machine the agent comes late
_FASTEST_GROWTH = 1.25  # of the period from one reading to the next: a thread that was idle may begin to work
_MAX_COST_RATIO = 0.015  # a reading walks every thread of the machine, 1 us each: with thousands it must be rare


class OffcpuPace:
    """Chooses the period from how full the fullest buffer was at the last reading. slots: what a buffer holds."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.period_ns = FIRST_PERIOD_NS
        self._cost_ns = 0.0

    def restart(self) -> None:
        """Starts over with short periods: what the threads do may change."""
        self.period_ns = int(min(self.period_ns, max(FIRST_PERIOD_NS, self._cost_ns / _MAX_COST_RATIO)))

    def note(self, tids: Iterable[int], *, elapsed_ns: int, cost_ns: int) -> None:
        """Notes a reading: the thread of each interval that it emptied, the time since the one before, and its cost."""
        fullest = max(Counter(tids).values(), default=0)
        self._cost_ns += (cost_ns - self._cost_ns) / 8
        filled_ns = elapsed_ns * _TARGET_FILL * self._slots / max(fullest, 1)
        period_ns = min(filled_ns, self.period_ns * _FASTEST_GROWTH)
        least_ns = max(MIN_PERIOD_NS, self._cost_ns / _MAX_COST_RATIO)
        self.period_ns = int(min(max(period_ns, least_ns), MAX_PERIOD_NS))
