"""The time that a profile's calls were blocked for the GPU, and the progress marks of their returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ingero.ops import Kind
from ingero.profiles.calls import kinds_of
from ingero.profiles.model import UNKNOWN, ActivityKind, Array, Direction, Profile

# A call that did not wait takes 3 to 15 us in real profiles, and the clocks of CPU and GPU differ by up to 8 us there.
MIN_BLOCKED_NS = 20_000
# Outstanding work that fills the queue of a stream: 1,022 on the real GPUs measured, less the share of other calls.
FULL_QUEUE = 900

_WAITS = int(Kind.SYNC)
_ASYNC_COPY = int(Kind.COPY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """The time (ns) that each call of a profile was blocked for the GPU, by kind of call."""

    sync: Array
    copy: Array
    launch: Array
    alloc: Array

    @property
    def total(self) -> Array:
        """The blocked time (ns) of each call, of all kinds."""
        found: Array = self.sync + self.copy + self.launch + self.alloc
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """At time_ns the work of a stream was done up to a position, counted from 1. kind: sync, copy or full_queue."""

    device: int
    stream: int
    kind: str
    position: int
    time_ns: int


def blocked_of(profile: Profile) -> Blocked:
    """The blocked time of each call of a profile."""
    calls = profile.calls
    kinds, durations = kinds_of(calls), calls["end_ns"] - calls["start_ns"]
    is_long = durations >= MIN_BLOCKED_NS
    is_sync = (kinds & _WAITS) != 0
    is_copy = ((kinds & _ASYNC_COPY) != 0) & ~is_sync
    is_launch = (kinds & int(Kind.LAUNCH)) != 0
    is_full = is_launch & is_long & (_outstanding(profile) >= FULL_QUEUE)
    is_freeing = ((kinds & int(Kind.FREE | Kind.ALLOC)) != 0) & ~is_sync & is_long
    return Blocked(
        sync=np.where(is_sync, durations, 0),
        copy=np.where(is_copy & is_long & _ran_inside(profile), durations, 0),
        launch=np.where(is_full, durations, 0),
        alloc=np.where(is_freeing & (_outstanding(profile) > 0), durations, 0),
    )


def marks_of(profile: Profile, blocked: Blocked) -> list[Mark]:
    """The progress marks of each stream at the return of each call that waited for it, sorted by time."""
    calls = profile.calls
    kinds = kinds_of(calls)
    enqueues = (kinds & int(Kind.ENQUEUE)) != 0
    found: list[Mark] = []
    for device, stream in _streams(calls[enqueues]):
        if stream == UNKNOWN:
            continue
        mine = enqueues & (calls["device"] == device) & (calls["stream"] == stream)
        found += _marks_of_stream(profile, blocked, kinds, mine)
    return sorted(found, key=lambda mark: mark.time_ns)


def _marks_of_stream(profile: Profile, blocked: Blocked, kinds: Array, mine: Array) -> list[Mark]:
    """Marks of one stream. mine: its enqueues."""
    calls = profile.calls
    device, stream = (int(calls[name][mine.argmax()]) for name in ("device", "stream"))
    on_it = (calls["stream"] == stream) & (calls["device"] == device)
    syncs = (((kinds & int(Kind.SYNC_STREAM)) != 0) & on_it) | ((kinds & int(Kind.SYNC_DEVICE)) != 0)
    copies, full = mine & (blocked.copy > 0) & ~syncs, mine & (blocked.launch > 0)
    # A copy to the GPU waits for what lies before it; its own bytes may still be on their way from a buffer.
    behind = np.where(copies & (calls["direction"] == Direction.HOST_TO_GPU), 1, 0)
    begins = calls["start_ns"][mine]
    positions = np.searchsorted(begins, calls["start_ns"], side="right") - behind
    # A launch waits for the one that lies a queue's length before it; the file says which one had just ended.
    positions[full] = np.searchsorted(begins, _last_done(profile, device, stream, calls["end_ns"][full]), side="right")
    found = []
    for kind, chosen in (("sync", syncs), ("copy", copies), ("full_queue", full)):
        for index in np.flatnonzero(chosen & (positions > 0)).tolist():
            place = {"position": int(positions[index]), "time_ns": int(calls["end_ns"][index])}
            found.append(Mark(device=device, stream=stream, kind=kind, **place))
    return found


def _last_done(profile: Profile, device: int, stream: int, times: Array) -> Array:
    """The start of the call whose work was the last to end before each time; 0 where there is none."""
    work = profile.activities
    work = work[(work["call_ns"] > 0) & (work["device"] == device) & (work["stream"] == stream)]
    work = work[np.argsort(work["end_ns"], kind="stable")]
    at = np.searchsorted(work["end_ns"], times, side="right")
    found: Array = np.append(0, work["call_ns"])[at]
    return found


def _streams(calls: Array) -> list[tuple[int, int]]:
    """The distinct (device, stream) pairs of these calls."""
    return sorted(set(zip(calls["device"].tolist(), calls["stream"].tolist(), strict=True)))


def _outstanding(profile: Profile) -> Array:
    """The number of unfinished GPU activities of the call's stream (without one: of all streams) at its start."""
    calls, done = profile.calls, profile.activities
    done = done[(done["call_ns"] > 0) & (done["kind"] != ActivityKind.SYNC)]
    found = np.zeros(len(calls), np.int64)
    for device, stream in _streams(calls):
        mine = (calls["device"] == device) & (calls["stream"] == stream)
        work = done if stream == UNKNOWN else done[(done["device"] == device) & (done["stream"] == stream)]
        begins = calls["start_ns"][mine]
        enqueued = np.searchsorted(np.sort(work["call_ns"]), begins, side="left")
        ended = np.searchsorted(np.sort(work["end_ns"]), begins, side="right")
        found[mine] = enqueued - ended
    return found


def _ran_inside(profile: Profile) -> Array:
    """Whether the GPU started the work of each call before the call returned."""
    calls, work = profile.calls, profile.activities
    work = work[(work["call_ns"] > 0) & (work["kind"] != ActivityKind.SYNC)]
    order = np.argsort(work["call_ns"], kind="stable")
    begins = work["call_ns"][order]
    at = np.searchsorted(begins, calls["start_ns"])
    is_known = at < len(begins)
    is_known[is_known] = begins[at[is_known]] == calls["start_ns"][is_known]
    found = np.zeros(len(calls), bool)
    found[is_known] = work["start_ns"][order[at[is_known]]] < calls["end_ns"][is_known]
    return found
