"""Sync intervals and steps within which tracing changed: compared with others where all of their work was traced.

The less a program does, the more of it tracing can afford: coverage changes in just the intervals that wait longest.
Where an interval made as many calls of each kind as others make, none was missed, and its length and clocks are exact.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ingero.events import SyncIntervalFlag

Array = np.ndarray[Any, np.dtype[Any]]

_CHANGED = int(SyncIntervalFlag.COVERAGE_CHANGED)
_OF_STEPS = _CHANGED | int(SyncIntervalFlag.LAUNCHES_UNSEEN)  # none is unseen where as many were seen as usual


class WholeWork:
    """The work of a stream's intervals within which tracing did not change.

    intervals: sync intervals in short, or steps by repetition (are_steps). The type of a step within which tracing
    changed says what was not traced: it has the type of the others with as many launches, if all these have one.
    """

    def __init__(self, intervals: Array, *, are_steps: bool) -> None:
        self._intervals, self._are_steps = intervals, are_steps

    @cached_property
    def _known(self) -> frozenset[tuple[int, int]]:
        """(launches, step type)."""
        unlike = _OF_STEPS if self._are_steps else _CHANGED
        whole = self._intervals[_has_begin(self._intervals) & (self._intervals["flags"] & unlike == 0)]
        pairs = np.unique(np.stack([whole["launches"], whole["step_type"]], axis=1), axis=0)
        if self._are_steps:
            launches, counts = np.unique(pairs[:, 0], return_counts=True)
            pairs = pairs[np.isin(pairs[:, 0], launches[(counts == 1) & (launches > 0)])]
        return frozenset(map(tuple, pairs.tolist()))

    def comparable(self, intervals: Array) -> Array:
        """Those of the same stream, whole or in short, that can be compared with others."""
        is_usable, is_changed = _has_begin(intervals), intervals["flags"] & _CHANGED != 0
        if not is_changed.any():
            return intervals if is_usable.all() else intervals[is_usable]
        types = dict(self._known) if self._are_steps else {}
        found: Array = intervals.copy()
        for index in np.flatnonzero(is_usable & is_changed).tolist():
            one = found[index]
            launches, step_type = int(one["launches"]), int(one["step_type"])
            step_type = types.get(launches, step_type)
            is_usable[index] = (launches, step_type) in self._known
            one["step_type"], one["flags"] = step_type, int(one["flags"]) & ~_OF_STEPS
        result: Array = found[is_usable]
        return result


def _has_begin(intervals: Array) -> Array:
    """Whether it is known when it began, and when its first launch was."""
    known: Array = (intervals["prev_sync_end_ns"] > 0) & (intervals["flags"] & int(SyncIntervalFlag.FIRST_UNKNOWN) == 0)
    return known
