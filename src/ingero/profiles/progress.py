"""What a profile's calls waited for, and how far the GPU was then."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ingero.ops import Kind
from ingero.profiles.calls import kinds_of
from ingero.profiles.model import UNKNOWN, ActivityKind, Array, Profile

# A call that did not wait takes 3 to 15 us in real profiles, and the clocks of CPU and GPU differ by up to 8 us there.
MIN_BLOCKED_NS = 20_000
# So much work outstanding on a stream fills its queue: 1,022 on the real GPUs measured, less what other calls took.
FULL_QUEUE = 900

_WAITS = int(Kind.DRAIN)
_ASYNC_COPY = int(Kind.COPY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """ns of each call of a profile that went into waiting for the GPU, by how it waited."""

    sync: Array
    copy: Array
    launch: Array
    alloc: Array

    @property
    def total(self) -> Array:
        """All of it."""
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
    """What waited, and for how long."""
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
    """How far each stream was, whenever a call that waited for it came back; in the order of time."""
    calls = profile.calls
    kinds = kinds_of(calls)
    enqueues = (kinds & int(Kind.ENQUEUE)) != 0
    found: list[Mark] = []
    for device, stream in sorted(
        set(zip(calls["device"][enqueues].tolist(), calls["stream"][enqueues].tolist(), strict=True))
    ):
        if stream == UNKNOWN:
            continue
        mine = enqueues & (calls["device"] == device) & (calls["stream"] == stream)
        begins = calls["start_ns"][mine]
        on_it = (calls["stream"] == stream) & (calls["device"] == device) & ((kinds & int(Kind.SYNC_STREAM)) != 0)
        waits = on_it | ((kinds & int(Kind.SYNC_DEVICE)) != 0)
        for index in np.flatnonzero(waits | (mine & (blocked.copy > 0))).tolist():
            position = int(np.searchsorted(begins, calls["start_ns"][index], side="right"))
            if position:
                kind = "sync" if waits[index] else "copy"
                found.append(
                    Mark(
                        device=device, stream=stream, kind=kind, position=position, time_ns=int(calls["end_ns"][index])
                    )
                )
    return sorted(found, key=lambda mark: mark.time_ns)


def _streams(calls: Array) -> list[tuple[int, int]]:
    """Device and stream of these calls, each pair once."""
    return sorted(set(zip(calls["device"].tolist(), calls["stream"].tolist(), strict=True)))


def _outstanding(profile: Profile) -> Array:
    """How many GPU activities of its stream (of all, for a call of none) were not done when each call began."""
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
    """Of each call whether the GPU began what it enqueued before it came back."""
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
