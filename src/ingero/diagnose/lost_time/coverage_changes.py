"""Sync intervals and steps within which tracing changed: kept where all of their work was traced anyway.

The less a program does, the more of it tracing can afford, so that coverage changes in just the intervals that wait
longest. Where an interval made as many calls of each kind as others do, none was missed, and its length and
thread-state times are exact.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ingero.events import SyncIntervalFlag

Array = np.ndarray[Any, np.dtype[Any]]

_CHANGED = int(SyncIntervalFlag.COVERAGE_CHANGED)
# In a step that has as many launches as others of its type, no launch was missed.
_STEP_CHANGED = _CHANGED | int(SyncIntervalFlag.LAUNCHES_UNSEEN)


class FullyTracedWork:
    """The work of a stream's intervals within which tracing did not change, by number of launches and step type.

    intervals: sync intervals in short, or steps by repetition (are_steps). Where tracing changed within a step, its own
    type is wrong: it gets the type of the other steps with as many launches, if these are all of one type.
    """

    def __init__(self, intervals: Array, *, are_steps: bool) -> None:
        self._intervals, self._are_steps = intervals, are_steps

    @cached_property
    def _known(self) -> frozenset[tuple[int, int]]:
        """The pairs (launches, step type) of fully traced intervals."""
        unlike = _STEP_CHANGED if self._are_steps else _CHANGED
        whole = self._intervals[_has_begin(self._intervals) & (self._intervals["flags"] & unlike == 0)]
        pairs = np.unique(np.stack([whole["launches"], whole["step_type"]], axis=1), axis=0)
        if self._are_steps:
            launches, counts = np.unique(pairs[:, 0], return_counts=True)
            pairs = pairs[np.isin(pairs[:, 0], launches[(counts == 1) & (launches > 0)])]
        return frozenset(map(tuple, pairs.tolist()))

    def comparable(self, intervals: Array) -> Array:
        """The intervals of the same stream, whole or in short, that can be compared with others."""
        is_usable, is_changed = _has_begin(intervals), intervals["flags"] & _CHANGED != 0
        if not is_changed.any():
            return intervals if is_usable.all() else intervals[is_usable]
        types = dict(self._known) if self._are_steps else {}
        found: Array = intervals.copy()
        for index in np.flatnonzero(is_usable & is_changed).tolist():
            interval = found[index]
            launches, step_type = int(interval["launches"]), int(interval["step_type"])
            step_type = types.get(launches, step_type)
            is_usable[index] = (launches, step_type) in self._known
            interval["step_type"], interval["flags"] = step_type, int(interval["flags"]) & ~_STEP_CHANGED
        result: Array = found[is_usable]
        return result


def _has_begin(intervals: Array) -> Array:
    """A mask of the intervals with a known begin and a known first launch."""
    known: Array = (intervals["prev_sync_end_ns"] > 0) & (intervals["flags"] & int(SyncIntervalFlag.FIRST_UNKNOWN) == 0)
    return known
