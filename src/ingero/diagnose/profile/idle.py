"""Breaks GPU idle time down by owner: each gap by what the thread that launched next did; every ns has one owner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.profile.blocked import WAIT_NS
from ingero.diagnose.profile.intervals import Intervals, united
from ingero.diagnose.profile.recording import ProfiledProcess
from ingero.ops import Kind

Array = np.ndarray[Any, np.dtype[Any]]

# Owners of idle time, in the order in which they claim what the launching thread did before its next launch. LAUNCH:
# from the begin of the call that ended the gap to the begin of the work that it enqueued.
INPUT, SYNC, ALLOC, CALLS, HOST = "input_data", "sync_return_delay", "allocation", "cuda_calls", "host"
LAUNCH = "launch_latency"
UNATTRIBUTED = "unattributed"
OWNERS = (INPUT, SYNC, ALLOC, CALLS, HOST, LAUNCH, UNATTRIBUTED)

# A gap that one piece of host code makes; shorter ones are the pace at which launches come (an operator of a framework
# takes 10 to 100 us from launch to launch).
LONG_GAP_NS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class IdleGaps:
    """The idle gaps of the main GPU from its first step or activity to its last activity.

    tids: the thread that launched next, 0 where its call is not in the profile. launch_ns: begin of that call, not
    before the gap. owned_ns: for each owner (OWNERS) its ns of each gap; over all owners they sum to the gap's length.
    """

    begins: Array
    ends: Array
    tids: Array
    launch_ns: Array
    owned_ns: dict[str, Array]

    @property
    def lasted_ns(self) -> Array:
        """The length of each gap in ns."""
        found: Array = self.ends - self.begins
        return found

    @property
    def is_long(self) -> Array:
        """Whether each gap is longer than the usual time between launches (LONG_GAP_NS)."""
        found: Array = self.lasted_ns >= LONG_GAP_NS
        return found

    def within(self, windows: Intervals) -> Array:
        """Whether the middle of each gap lies in these windows."""
        middle = (self.begins + self.ends) // 2
        found: Array = windows.between(middle, middle + 1) > 0
        return found


def find_idle_gaps(profile: ProfiledProcess, busy: Intervals) -> IdleGaps:
    """Finds every idle gap of the main GPU and its owners. busy: when the GPU was busy."""
    begins, ends = _gaps(profile, busy)
    tids, calls = _next_calls(profile, ends)
    launched = np.where(calls > 0, np.clip(calls, begins, ends), begins)
    owned = {name: np.zeros(len(begins), np.int64) for name in OWNERS}
    known = tids != 0
    owned[LAUNCH] = np.where(known, ends - launched, 0)
    for tid in np.unique(tids[known]):
        mine = tids == tid
        for name, covered in _time_by_owner(profile, int(tid), begins[mine], launched[mine]):
            owned[name][mine] = covered
    owned[UNATTRIBUTED] = (ends - begins) - np.sum(list(owned.values()), axis=0)
    return IdleGaps(begins=begins, ends=ends, tids=tids, launch_ns=launched, owned_ns=owned)


def _gaps(profile: ProfiledProcess, busy: Intervals) -> tuple[Array, Array]:
    """The gaps between activities, and from the begin of the first step to the first activity."""
    begins, ends = busy.gaps()
    first_ns = int(profile.steps["start_ns"].min()) if len(profile.steps) else profile.begin_ns
    if first_ns >= profile.begin_ns:
        return begins, ends
    return np.concatenate([[first_ns], begins]), np.concatenate([[profile.begin_ns], ends])


def _next_calls(profile: ProfiledProcess, ends: Array) -> tuple[Array, Array]:
    """Thread and begin of the call whose work ended each gap; 0 where it is not in the profile."""
    work, calls = profile.work(), profile.calls
    begun = work["call_ns"][np.searchsorted(work["start_ns"], ends)]
    place = np.searchsorted(calls["start_ns"], begun)
    place = np.minimum(place, max(len(calls) - 1, 0))
    is_known = (calls["start_ns"][place] == begun) & (begun > 0) if len(calls) else np.zeros(len(ends), bool)
    tids = np.where(is_known, calls["tid"][place], 0) if len(calls) else np.zeros(len(ends), np.int64)
    return tids, np.where(is_known, begun, 0)


def _time_by_owner(profile: ProfiledProcess, tid: int, begins: Array, ends: Array) -> Iterator[tuple[str, Array]]:
    """Time in ns of each owner in these time ranges of a thread: a ns belongs to the first owner that covers it."""
    before = united(np.zeros(0, np.int64), np.zeros(0, np.int64))
    had = np.zeros(len(begins), np.int64)
    for name, mine in _activities(profile, tid):
        before = before.union(mine)
        covered = before.between(begins, ends)
        yield name, covered - had
        had = covered


def _activities(profile: ProfiledProcess, tid: int) -> Iterator[tuple[str, Intervals]]:
    """The activities of a thread, by owner of the idle time."""
    calls, is_its_call = profile.calls, profile.calls["tid"] == tid
    lasted = calls["end_ns"] - calls["start_ns"]
    waits = profile.is_kind(Kind.SYNC) | (profile.is_kind(Kind.COPY) & (lasted >= WAIT_NS))
    memory = profile.is_kind(Kind.MEMORY)
    yield INPUT, _ranges_of_thread(profile.ranges_of("data_loading"), tid)
    yield SYNC, _intervals_of(calls[is_its_call & waits])
    yield ALLOC, _intervals_of(calls[is_its_call & memory])
    yield CALLS, _intervals_of(calls[is_its_call])
    yield (
        HOST,
        _ranges_of_thread(profile.ranges_of("range", "operator"), tid).union(_python_between_calls(profile, tid)),
    )


def _ranges_of_thread(ranges: Array, tid: int) -> Intervals:
    return _intervals_of(ranges[ranges["tid"] == tid])


def _intervals_of(rows: Array) -> Intervals:
    return united(rows["start_ns"], rows["end_ns"])


def _python_between_calls(profile: ProfiledProcess, tid: int) -> Intervals:
    """The time from one call to the next where both have a stack: code that both stacks share ran in between."""
    calls = profile.calls[profile.calls["tid"] == tid]
    with_stack = calls["stack_hash"] != 0
    is_between = with_stack[:-1] & with_stack[1:]
    return united(calls["end_ns"][:-1][is_between], calls["start_ns"][1:][is_between])
