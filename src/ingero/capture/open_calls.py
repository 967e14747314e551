"""When open calls began, in wall-clock time: each time the same, though the clocks are paired anew meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from ingero.capture.clocks import WallClock


class OpenSince:
    """Keeps the beginning of each call that is open, as it was told first: it is a part of the call's name."""

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._told: dict[tuple[int, int], int] = {}

    def of(self, calls: Sequence[tuple[int, int]]) -> list[int]:
        """Unix ns of each (thread, beginning by CLOCK_MONOTONIC); calls that are not among them have ended."""
        self._told = {call: self._told.get(call) or self._clock.unix_ns_of(call[1]) for call in calls}
        return [self._told[call] for call in calls]
