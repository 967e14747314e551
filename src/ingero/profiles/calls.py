"""Reduces a profile's calls to what probes would record: outermost calls with their stream and enqueued work."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ingero.ops import BY_ID, Kind
from ingero.profiles.intervals import owners
from ingero.profiles.model import NO_CORRELATION, NO_OP, UNKNOWN, ActivityKind, Array, Notes

PROFILERS_SYNC = "left out, device synchronizations that the profiler made itself"
WITHOUT_CALL = "kept, GPU activities whose call is not in the file"
WITHOUT_ACTIVITY = "kept, launches and copies whose GPU activity is not in the file"

_KINDS = np.array([int(BY_ID[op].kind) if op in BY_ID else 0 for op in range(256)] + [0])  # [NO_OP] is the last
_ON_A_STREAM = int(Kind.ENQUEUE | Kind.SYNC_STREAM | Kind.EVENT_RECORD)


def kinds_of(calls: Array) -> Array:
    """The bits of `Kind` of each call."""
    found: Array = _KINDS[calls["op"]]
    return found


def linked(calls: Array, activities: Array) -> tuple[Array, Array, dict[int, int]]:
    """The outermost traced calls with what they enqueued, the activities with their calls, and nested calls by op.

    A libcudart call makes a libcuda call inside, and an activity may name either of them.
    """
    calls = calls[np.lexsort((-calls["end_ns"], calls["start_ns"]))]
    traced = np.flatnonzero(calls["op"] != NO_OP)
    owner = np.arange(len(calls))
    owner[traced] = traced[owners(calls[traced])]
    activities = activities[np.argsort(activities["start_ns"], kind="stable")]
    _join(calls, activities, owner)
    is_outermost = owner[traced] == traced
    nested = Counter(calls["op"][traced[~is_outermost]].tolist())
    kept = calls[traced[is_outermost]]
    _fill_streams(kept)
    return kept, activities, dict(nested)


def _join(calls: Array, activities: Array, owner: Array) -> None:
    """Fills in the call and process of each activity, and the first activity that each outermost call enqueued."""
    by_correlation = np.argsort(calls["correlation"], kind="stable")
    known = calls["correlation"][by_correlation]
    at = np.searchsorted(known, activities["correlation"])
    is_known = (at < len(known)) & (activities["correlation"] != NO_CORRELATION)
    is_known[is_known] = known[at[is_known]] == activities["correlation"][is_known]
    found = np.flatnonzero(is_known)
    call = owner[by_correlation[at[found]]]
    activities["call_ns"][found] = calls["start_ns"][call]
    activities["pid"][found] = calls["pid"][call]
    np.add.at(calls["bytes"], call, activities["bytes"][found])
    first_calls, first = np.unique(call, return_index=True)
    for name in ("device", "stream", "direction", "host_memory"):
        calls[name][first_calls] = activities[name][found[first]]
    is_kernel = activities["kind"][found[first]] == ActivityKind.KERNEL
    is_launch = (_KINDS[calls["op"][first_calls]] & int(Kind.LAUNCH | Kind.GRAPH)) == int(Kind.LAUNCH)
    chosen = is_kernel & is_launch  # a graph is many kernels
    calls["function"][first_calls[chosen]] = activities["name"][found[first[chosen]]]


def _fill_streams(calls: Array) -> None:
    """Gives calls without a stream the stream that their thread used last."""
    on_a_stream = (kinds_of(calls) & _ON_A_STREAM) != 0
    for tid in np.unique(calls["tid"]).tolist():
        mine = np.flatnonzero((calls["tid"] == tid) & on_a_stream)
        is_known = calls["stream"][mine] != UNKNOWN
        last = np.maximum.accumulate(np.where(is_known, np.arange(len(mine)), -1))
        unknown = mine[~is_known & (last >= 0)]
        source = mine[last[~is_known & (last >= 0)]]
        for name in ("device", "stream"):
            calls[name][unknown] = calls[name][source]


def without_profilers_syncs(calls: Array, notes: Notes) -> Array:
    """The calls without the device synchronizations that PyTorch's profiler makes at its start and end."""
    kinds = kinds_of(calls)
    enqueued = calls["start_ns"][(kinds & int(Kind.ENQUEUE)) != 0]
    if not len(enqueued):
        return calls
    outside = (calls["start_ns"] < enqueued.min()) | (calls["start_ns"] > enqueued.max())
    own = outside & ((kinds & int(Kind.SYNC_DEVICE)) != 0)
    notes.remarks[PROFILERS_SYNC] += int(own.sum())
    kept: Array = calls[~own]
    return kept


def count_gaps(calls: Array, activities: Array, notes: Notes) -> None:
    """Counts activities without their call and calls without their activity, as at the edges of a profile."""
    without_call = (activities["call_ns"] == 0) & (activities["kind"] != ActivityKind.SYNC)
    notes.remarks[WITHOUT_CALL] += int(without_call.sum())
    if len(activities):
        enqueues = (kinds_of(calls) & int(Kind.LAUNCH | Kind.COPY)) != 0
        started = np.unique(activities["call_ns"])
        notes.remarks[WITHOUT_ACTIVITY] += int((~np.isin(calls["start_ns"][enqueues], started)).sum())
