"""Chooses how often each CPU is sampled, by the number of CPUs that run traced threads."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

MAX_HZ = 97  # in step with nothing that happens 10, 50 or 100 times a second
MIN_HZ = 7
_MAX_PER_S = 16 * MAX_HZ  # samples of all CPUs together: each costs the agent 10 us, at a new place 1 ms
_MAX_AT_ONCE_PER_S = 4 * _MAX_PER_S  # should all CPUs begin to run traced threads within one second
_PERIODS = 16  # that are remembered; a sample is taken out of its ring within a second


class SamplePace:
    """The sampling rate of all CPUs, second by second, and the period a sample stood for when taken.

    cpus: how many there are. A machine of 128 CPUs, of which eight run traced threads, is sampled like one of eight.
    """

    def __init__(self, cpus: int) -> None:
        self._most_hz = _between(_MAX_AT_ONCE_PER_S // max(cpus, 1))
        self._hz = _between(_MAX_PER_S // max(cpus, 1))
        self._seen = 0
        self._periods: deque[tuple[int, int]] = deque([(0, self.period_ns)], maxlen=_PERIODS)

    @property
    def period_ns(self) -> int:
        """The current period of each CPU's clock, ns."""
        return 10**9 // self._hz

    def periods_ns(self, times_ns: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The periods that samples at these times (CLOCK_MONOTONIC) stand for; counts the samples."""
        self._seen += len(times_ns)
        since_ns, period_ns = np.array(list(self._periods), np.int64).T
        return np.asarray(period_ns[np.maximum(np.searchsorted(since_ns, times_ns, "right") - 1, 0)])

    def choose(self, *, now_ns: int, elapsed_ns: int) -> None:
        """Chooses the rate from now on, by the samples since the last choice."""
        at_work = self._seen * 1e9 / max(elapsed_ns, 1) / self._hz  # CPUs
        self._seen = 0
        hz = min(_between(int(_MAX_PER_S / max(at_work, 1))), self._most_hz)
        if hz != self._hz:
            self._hz = hz
            self._periods.append((now_ns, self.period_ns))


def _between(hz: int) -> int:
    return max(MIN_HZ, min(MAX_HZ, hz))
