"""Converts the kernel's CLOCK_MONOTONIC into wall-clock time, without breaks where NTP steps the clock."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from ingero.discover import kernel_clock
from ingero.units import format_ns

logger = logging.getLogger(__name__)

PAIR_PERIOD_NS = 10_000_000_000
_KEPT_PAIRS = 360  # an hour: nothing that old is still to be converted
_STEP_NS = 100_000_000  # NTP slews at most 500 ppm, 5 ms between two pairs, and steps beyond 128 ms
_READINGS = 5  # the tightest of a few readings: one may be preempted between its two clocks


def read_pair() -> tuple[int, int]:
    """Reads both clocks at one moment: (monotonic ns, unix ns)."""
    best: tuple[int, int, int] | None = None
    for _ in range(_READINGS):
        before = kernel_clock.monotonic_ns()
        unix = time.time_ns()
        after = kernel_clock.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, unix)
    assert best is not None
    return best[1], best[2]


class WallClock:
    """Converts between the clocks by interpolation between pairs of readings.

    Before the first pair and after the last, the nearest pair's offset holds. A clock that is set back would give two
    moments the same time: the recording goes on in the time it has, until the clock is set forward again.
    """

    def __init__(self) -> None:
        self._mono = np.empty(0, np.int64)
        self._offset = np.empty(0, np.int64)
        self.last_pair_mono_ns = 0
        self._last_unix_ns = 0
        self._held_ns = 0  # what the clock was set back by, and this timeline was not

    def add_pair(self, mono_ns: int, unix_ns: int) -> None:
        """Adds a pair; monotonic times must grow."""
        if len(self._mono):
            self._note_step((unix_ns - self._last_unix_ns) - (mono_ns - self.last_pair_mono_ns))
        self._last_unix_ns = unix_ns
        self._mono = np.append(self._mono, mono_ns)[-_KEPT_PAIRS:]
        self._offset = np.append(self._offset, unix_ns - mono_ns + self._held_ns)[-_KEPT_PAIRS:]
        self.last_pair_mono_ns = mono_ns
        # relative to the last pair: floats are exact there, and nanoseconds of absolute times are not
        self._anchors = (self._mono - mono_ns).astype(np.float64)
        self._drift = (self._offset - self._offset[-1]).astype(np.float64)
        self._is_steady = not self._drift.any()

    def _note_step(self, step_ns: int) -> None:
        if step_ns < -_STEP_NS:
            self._held_ns -= step_ns
            logger.warning(
                "the clock was set back by %s: this recording continues in the old time", format_ns(-step_ns)
            )
        elif step_ns > _STEP_NS:
            self._held_ns -= min(self._held_ns, step_ns)

    def now_ns(self) -> int:
        """The current unix time in this timeline, ns; the system clock may differ."""
        return self.unix_ns_of(kernel_clock.monotonic_ns())

    def unix_ns(self, mono_ns: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Wall-clock times, shape as given. Exact to the nanosecond while the offset stands still."""
        mono = mono_ns.astype(np.int64)
        wall: np.ndarray[Any, np.dtype[np.int64]] = mono + self._offset[-1]
        if not self._is_steady:
            since = (mono - self.last_pair_mono_ns).astype(np.float64)
            wall += np.rint(np.interp(since, self._anchors, self._drift)).astype(np.int64)
        return wall

    def unix_ns_of(self, mono_ns: int) -> int:
        """The wall-clock time of one monotonic time, ns."""
        return int(self.unix_ns(np.asarray([mono_ns]))[0])
