"""Assembles the profile of a process: joins calls and activities, makes stacks, leaves out nested operators."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingero.profiles.calls import count_gaps, linked, without_profilers_syncs
from ingero.profiles.intervals import owners
from ingero.profiles.model import FRAME_DTYPE, NO_CORRELATION, Array, Frame, Notes, Profile, RangeKind
from ingero.profiles.python_stacks import stacks_of_frames, stacks_of_operators

INNER_OPERATORS = "left out, operators inside other operators"
_MAX_SHARING = 64  # processes of one file with the same correlation numbers: the GPUs of some hosts
_NO_FRAMES = np.zeros(0, FRAME_DTYPE)


_TABLES = ("calls", "activities", "ranges", "frames", "call_stacks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The rows of a file. call_stacks: operators whose name is their whole Python stack."""

    calls: Array
    activities: Array
    ranges: Array
    frames: Array = field(default_factory=lambda: _NO_FRAMES)
    call_stacks: Array = field(default_factory=lambda: _NO_FRAMES)

    @property
    def is_empty(self) -> bool:
        """Whether there is no GPU call and no GPU activity."""
        return not len(self.calls) and not len(self.activities)

    @property
    def first_ns(self) -> int:
        """The start of the first call or activity."""
        return min(int(rows["start_ns"].min()) for rows in (self.calls, self.activities) if len(rows))

    def shift(self, ns: int) -> None:
        """Moves all times."""
        for name in _TABLES:
            rows = getattr(self, name)
            rows["start_ns"] += ns
            rows["end_ns"] += ns

    def of_process(self, pid: int) -> Parts:
        """The rows of one process."""
        return Parts(**{name: rows[rows["pid"] == pid] for name in _TABLES for rows in [getattr(self, name)]})


def assign(parts: Parts) -> list[int]:
    """Assigns each activity to the process of the call with its correlation number, or else to the one with most calls.

    Returns the processes with calls, most calls first; without any call, a process that has ranges. Where several
    processes use the same correlation numbers, each GPU is assigned to one of them.
    """
    calls, activities = parts.calls, parts.activities
    pids = [pid for pid, _ in Counter(calls["pid"].tolist()).most_common()]
    if not pids:
        pids = [int(parts.ranges["pid"][0]) if len(parts.ranges) else 0]
    is_known, call = _calls_of(calls, activities)
    activities["pid"] = pids[0]
    activities["pid"][is_known] = calls["pid"][call]
    shared = is_known & np.isin(activities["correlation"], _shared_numbers(calls))
    if shared.any() and len(pids) <= _MAX_SHARING:
        for device in np.unique(activities["device"][shared]).tolist():
            on_it = activities["device"] == device
            activities["pid"][on_it] = _owner_of_gpu(calls, activities[on_it], pids)
    return pids


def _calls_of(calls: Array, activities: Array) -> tuple[Array, Array]:
    """A mask of the activities with a call of their correlation number, and the indexes of these calls."""
    order = np.argsort(calls["correlation"], kind="stable")
    known = calls["correlation"][order]
    at = np.searchsorted(known, activities["correlation"])
    is_known = (at < len(known)) & (activities["correlation"] != NO_CORRELATION)
    is_known[is_known] = known[at[is_known]] == activities["correlation"][is_known]
    return is_known, order[at[is_known]]


def _shared_numbers(calls: Array) -> Array:
    """Correlation numbers that calls of several processes have."""
    pairs = np.unique(calls[["correlation", "pid"]])
    numbers, counts = np.unique(pairs["correlation"], return_counts=True)
    found: Array = numbers[counts > 1]
    return found


def _owner_of_gpu(calls: Array, activities: Array, pids: list[int]) -> int:
    """The process with most calls before the activities they enqueued; of several, that with the shortest delay."""

    def score(pid: int) -> tuple[int, float]:
        mine = calls[calls["pid"] == pid]
        is_known, call = _calls_of(mine, activities)
        after_ns = activities["start_ns"][is_known] - mine["start_ns"][call]
        return int((after_ns >= 0).sum()), -float(np.median(np.abs(after_ns))) if len(after_ns) else 0.0

    return max(pids, key=score)


def profile_of(parts: Parts, notes: Notes, *, is_pytorch: bool = True, **facts: Any) -> Profile:
    """The profile of one process. is_pytorch: its profiler added synchronizations; facts: the fields of `Profile`."""
    calls, activities, nested = linked(parts.calls, parts.activities)
    if is_pytorch:
        calls = without_profilers_syncs(calls, notes)
    count_gaps(calls, activities, notes)
    stacks: tuple[tuple[Frame, ...], ...] = ((),)
    texts: tuple[str, ...] = facts["texts"]
    if len(parts.frames):
        calls["stack"], stacks = stacks_of_frames(calls, parts.frames, texts)
    elif len(parts.call_stacks):
        calls["stack"], stacks = stacks_of_operators(calls, parts.call_stacks, texts)
    return Profile(
        calls=calls,
        activities=activities,
        ranges=_outermost_operators(parts.ranges, notes),
        stacks=stacks,
        nested=nested,
        has_python_stacks=len(stacks) > 1,
        **facts,
    )


def _outermost_operators(ranges: Array, notes: Notes) -> Array:
    """The ranges without operators inside other operators, sorted by start."""
    is_operator = ranges["kind"] == RangeKind.OPERATOR
    operators = ranges[is_operator]
    is_outermost = owners(operators) == np.arange(len(operators))
    notes.remarks[INNER_OPERATORS] += int((~is_outermost).sum())
    kept = np.concatenate([ranges[~is_operator], operators[is_outermost]])
    return kept[np.argsort(kept["start_ns"], kind="stable")]
