"""Converts the kernel's CLOCK_MONOTONIC into wall-clock time, without tearing the timeline when NTP steps it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

PAIR_PERIOD_NS = 10_000_000_000
_READINGS = 5  # the tightest of a few readings: one may be preempted between its two clocks


def read_pair() -> tuple[int, int]:
    """One moment on both clocks: (monotonic ns, unix ns)."""
    best: tuple[int, int, int] | None = None
    for _ in range(_READINGS):
        before = time.monotonic_ns()
        unix = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, unix)
    assert best is not None
    return best[1], best[2]


class WallClock:
    """Pairs of readings, and times between them by interpolation.

    Before the first pair and after the last, the nearest pair's offset holds.
    """

    def __init__(self) -> None:
        self._mono: list[int] = []
        self._offset: list[int] = []

    def add_pair(self, mono_ns: int, unix_ns: int) -> None:
        """Adds a pair; monotonic times must grow."""
        self._mono.append(mono_ns)
        self._offset.append(unix_ns - mono_ns)

    @property
    def last_pair_mono_ns(self) -> int:
        """When the last pair was read."""
        return self._mono[-1]

    def unix_ns(self, mono_ns: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Wall-clock times, shape as given. Exact to the nanosecond while the offset stands still."""
        mono = mono_ns.astype(np.int64)
        base = self._offset[-1]
        drift = np.asarray([offset - base for offset in self._offset], np.float64)
        origin = self._mono[0]
        anchors = np.asarray([at - origin for at in self._mono], np.float64)
        correction = np.interp((mono - origin).astype(np.float64), anchors, drift)
        wall: np.ndarray[Any, np.dtype[np.int64]] = mono + base + np.rint(correction).astype(np.int64)
        return wall

    def unix_ns_of(self, mono_ns: int) -> int:
        """One time."""
        return int(self.unix_ns(np.asarray([mono_ns]))[0])
