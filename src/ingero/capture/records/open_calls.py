"""Calls in flight from reading to reading: when they began, and how long their threads ran in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingero.capture.loop.clocks import WallClock
from ingero.events import STATES

_AWAKE = [STATES.index(name) for name in ("run", "runq", "throttled", "yielded")]


class InFlightSince:
    """Keeps the begin of each call in flight as it was reported first: it identifies the call.

    In wall-clock time: each time the same, though the clocks are paired anew meanwhile.
    """

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._begin_ns: dict[tuple[int, int], int] = {}

    def of(self, calls: Sequence[tuple[int, int]]) -> list[int]:
        """Begin (unix ns) of each call given as (thread, begin by CLOCK_MONOTONIC); other calls have ended."""
        self._begin_ns = {call: self._begin_ns.get(call) or self._clock.unix_ns_of(call[1]) for call in calls}
        return [self._begin_ns[call] for call in calls]


class AwakeTime:
    """Keeps the thread-state times of threads as their calls were first seen in flight."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], int] = {}

    def of(self, calls: Sequence[tuple[int, int]], state_ns: np.ndarray[Any, Any]) -> list[int]:
        """How long each thread has run, or could have, since then; calls as in `InFlightSince.of`, and their clocks."""
        now = state_ns[:, _AWAKE].astype(np.int64).sum(axis=1).tolist() if len(calls) else []
        self._first = {call: self._first.get(call, awake) for call, awake in zip(calls, now, strict=True)}
        return [awake - self._first[call] for call, awake in zip(calls, now, strict=True)]
