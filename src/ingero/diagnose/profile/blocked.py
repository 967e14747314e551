"""When the launching threads waited for the GPU: on a full launch queue, in syncs, in copies, in allocations.

A call waited as long as the GPU was busy meanwhile; what it took beyond that is the host's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.profile.intervals import Intervals, united
from ingero.diagnose.profile.recording import ProfiledProcess
from ingero.ops import Kind

Array = np.ndarray[Any, np.dtype[Any]]

SYNC, COPY, LAUNCH, ALLOC = "sync", "copy", "launch", "alloc"

# A call that only enqueues takes 2 to 20 us; one that waits for anything takes longer (of ten launches of 20 us on a
# full queue seven had not waited).
WAIT_NS = 30_000
_SLOW_LAUNCH_FACTOR = 4  # times the median launch: a slow host launches slowly without any wait
_FULL_QUEUE_OPS = (
    900  # operations outstanding: the queue takes 1,022 of them, and what was enqueued just now is not seen
)


@dataclass(frozen=True, kw_only=True)
class GpuWaits:
    """The waits of the launching threads for the GPU.

    kinds: by kind (SYNC to ALLOC) a mask of the waits; calls: index of each wait among the process's calls; waited_ns:
    length of each wait. whole: when any of the threads waited while the GPU was busy.
    """

    kinds: Mapping[str, Array]
    calls: Array
    waited_ns: Array
    whole: Intervals

    def of(self, kind: str, calls: Array, begin_ns: int, end_ns: int) -> int:
        """Time waited in calls of a kind that began in a time range, in ns."""
        mine = self.kinds[kind]
        begins = calls["start_ns"][self.calls]
        return int(self.waited_ns[mine & (begins >= begin_ns) & (begins < end_ns)].sum())


def find_waits(profile: ProfiledProcess, busy: Intervals) -> GpuWaits:
    """Finds the waits of a process's launching threads for the GPU. busy: when the GPU was busy."""
    calls = profile.calls
    is_mine = np.isin(calls["tid"], profile.launching_threads)
    masks = {
        LAUNCH: full_queue_launches(profile),
        SYNC: _syncs(profile),
        COPY: _copies(profile),
        ALLOC: _allocations(profile),
    }
    waits = np.zeros(len(calls), bool)
    for name, mask in masks.items():  # a call of several kinds counts as the first of them
        masks[name] = mask & is_mine & ~waits
        waits |= masks[name]
    places = np.flatnonzero(waits)
    begins, ends = calls["start_ns"][places], calls["end_ns"][places]
    return GpuWaits(
        kinds={name: mask[places] for name, mask in masks.items()},
        calls=places,
        waited_ns=busy.between(begins, ends),
        whole=_intersection(busy, united(begins, ends)),
    )


def _syncs(profile: ProfiledProcess) -> Array:
    """Mask of calls that synchronize, blocking copies among them."""
    return profile.is_kind(Kind.SYNC)


def _is_long(profile: ProfiledProcess) -> Array:
    found: Array = profile.calls["end_ns"] - profile.calls["start_ns"] >= WAIT_NS
    return found


def _copies(profile: ProfiledProcess) -> Array:
    """Mask of asynchronous copies that waited: with pageable memory they are not asynchronous."""
    return profile.is_kind(Kind.COPY) & _is_long(profile)


def _allocations(profile: ProfiledProcess) -> Array:
    """Mask of allocations and frees that waited, some of which synchronize."""
    return profile.is_kind(Kind.ALLOC | Kind.FREE) & _is_long(profile)


def full_queue_launches(profile: ProfiledProcess) -> Array:
    """Mask of launches, and of copies and fills that only enqueue, that waited on a full launch queue."""
    calls = profile.calls
    launches = profile.is_kind(Kind.ENQUEUE) & ~profile.is_kind(Kind.SYNC)
    lasted = calls["end_ns"] - calls["start_ns"]
    least = max(WAIT_NS, _SLOW_LAUNCH_FACTOR * float(np.median(lasted[launches]))) if launches.any() else WAIT_NS
    found: Array = launches & (lasted >= least) & (outstanding(profile, calls["start_ns"]) >= _FULL_QUEUE_OPS)
    return found


def outstanding(profile: ProfiledProcess, times: Array) -> Array:
    """Number of operations enqueued and not done at these times; exact, because each activity names its call."""
    work = profile.work()
    work = work[work["call_ns"] > 0]
    enqueued = np.searchsorted(np.sort(work["call_ns"]), times)
    done = np.searchsorted(np.sort(work["end_ns"]), times)
    found: Array = enqueued - done
    return found


def _intersection(first: Intervals, second: Intervals) -> Intervals:
    """The time that both cover."""
    edges = np.unique(np.concatenate([first.begins, first.ends, second.begins, second.ends]))
    begins, ends = edges[:-1], edges[1:]
    lasted = ends - begins
    inside = (first.between(begins, ends) == lasted) & (second.between(begins, ends) == lasted)
    return united(begins[inside], ends[inside])
