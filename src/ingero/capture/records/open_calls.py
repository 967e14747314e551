"""Open calls from look to look: when they began, and how long their threads have been awake in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingero.capture.loop.clocks import WallClock
from ingero.events import STATES

_AWAKE = [STATES.index(name) for name in ("run", "runq", "throttled", "yielded")]


class OpenSince:
    """Keeps the beginning of each call that is open, as it was told first: it is a part of the call's name.

    In wall-clock time: each time the same, though the clocks are paired anew meanwhile.
    """

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._told: dict[tuple[int, int], int] = {}

    def of(self, calls: Sequence[tuple[int, int]]) -> list[int]:
        """Unix ns of each (thread, beginning by CLOCK_MONOTONIC); calls that are not among them have ended."""
        self._told = {call: self._told.get(call) or self._clock.unix_ns_of(call[1]) for call in calls}
        return [self._told[call] for call in calls]


class AwakeSince:
    """Keeps what the clocks of the threads were as their calls were first seen open."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], int] = {}

    def of(self, calls: Sequence[tuple[int, int]], state_ns: np.ndarray[Any, Any]) -> list[int]:
        """How long each thread has run, or could have, since then; calls as in `OpenSince.of`, and their clocks."""
        now = state_ns[:, _AWAKE].astype(np.int64).sum(axis=1).tolist() if len(calls) else []
        self._first = {call: self._first.get(call, awake) for call, awake in zip(calls, now, strict=True)}
        return [awake - self._first[call] for call, awake in zip(calls, now, strict=True)]
