"""The threads of a process that launch work on its GPU in turns, one while another sleeps until it is done.

PyTorch launches the backward pass from a thread of its own, while the calling thread sleeps. The thread-state times of
a sync interval are of one thread, whose sleep is then most of the step. Here that sleep becomes what the other thread
did meanwhile: it ran, or it was runnable. Waits of that thread stay sleep, and the critical path explains them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.events import STATES, SyncIntervalFlag

Array = np.ndarray[Any, np.dtype[Any]]

MIN_SLEEP_NS = 200_000  # shorter sleeps hold no recorded interval off the CPU
# States of a launching thread, on a CPU or kept off it, that replace the sleep of the thread that waits for it.
_LAUNCHING_STATES = tuple(name for name in ("run", "runq", "throttled", "yielded") if name in STATES)
_AUTOGRAD = re.compile(r"pt_autograd_\d+")  # the name that PyTorch gives the threads of its backward passes
_SLEEP = STATES.index("sleep")


@dataclass(frozen=True, slots=True)
class PartFields:
    """Field names of a part of a sync interval: its length, thread, begin, end and thread-state times."""

    length: str
    tid: str
    begin: str
    end: str
    state_ns: str


# Of the thread that synced before.
IDLE_FIELDS = PartFields("idle_ns", "prev_sync_tid", "prev_sync_end_ns", "first_launch_ns", "idle_state_ns")
# Of the thread that made the first launch.
LAUNCH_FIELDS = PartFields("busy_ns", "first_launch_tid", "first_launch_ns", "sync_start_ns", "launch_state_ns")


class LaunchingThreads:
    """The threads of one process that launch work on the GPU.

    threads: their ids. path: what the sleeps of a thread between two times went into (see `CriticalPaths.path`).
    """

    def __init__(self, threads: Collection[int], path: Callable[..., list[PathSegment]]) -> None:
        self.threads, self._path = frozenset(threads), path

    def has(self, segment: PathSegment) -> bool:
        """Whether a path segment is a launching thread that another thread waits for."""
        return segment.depth > 0 and segment.tid in self.threads and segment.state in _LAUNCHING_STATES

    def take_turns(self, sync_intervals: Array) -> bool:
        """Whether several threads launch in these intervals; of some, no launch may have been traced."""
        fields = (IDLE_FIELDS.tid, LAUNCH_FIELDS.tid)
        return bool(self.threads) and len(self.threads.union(*(sync_intervals[name].tolist() for name in fields))) > 1

    def path(self, sync_interval: Any, fields: PartFields) -> list[PathSegment]:
        """The critical path of a part of a sync interval; in a step, without sleeps in calls that wait for the GPU."""
        is_step = bool(sync_interval["flags"] & int(SyncIntervalFlag.STEP))
        begin_ns, end_ns = int(sync_interval[fields.begin]), int(sync_interval[fields.end])
        return self._path(int(sync_interval[fields.tid]), begin_ns, end_ns, outside_gpu_calls=is_step)

    def merge_thread_states(self, sync_intervals: Array) -> Array:
        """These sync intervals (`SYNC_INTERVAL_DTYPE`), with the states of launching threads as if of one thread."""
        if not self.take_turns(sync_intervals):
            return sync_intervals
        found: Array = sync_intervals.copy()
        for fields in (IDLE_FIELDS, LAUNCH_FIELDS):
            state_ns = found[fields.state_ns]
            for index in np.flatnonzero(state_ns[:, _SLEEP] > MIN_SLEEP_NS).tolist():
                by_state = Counter[str]()
                for segment in self.path(found[index], fields):
                    if self.has(segment):
                        by_state[segment.state] += segment.duration_ns
                scale = min(1.0, int(state_ns[index, _SLEEP]) / max(by_state.total(), 1))
                for state, ns in by_state.items():
                    state_ns[index, STATES.index(state)] += int(ns * scale)
                    state_ns[index, _SLEEP] -= int(ns * scale)
        return found

    def spans(self, sync_intervals: Array) -> dict[int, list[tuple[int, int]]]:
        """Times at which launching threads ran while another waited, by thread, in the host's parts of intervals."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for segment in self._segments(sync_intervals) if self.take_turns(sync_intervals) else ():
            if self.has(segment) and segment.state == "run":
                found[segment.tid].append((segment.begin_ns, segment.end_ns))
        return found

    def _segments(self, sync_intervals: Array) -> Iterator[PathSegment]:
        for fields in (IDLE_FIELDS, LAUNCH_FIELDS):
            for sync_interval in sync_intervals[sync_intervals[fields.length] > MIN_SLEEP_NS]:
                yield from self.path(sync_interval, fields)


def launching_threads(launching: Iterable[int], names: Iterable[tuple[int, str]]) -> frozenset[int]:
    """The threads with recorded launches, and PyTorch's autograd threads, whose launches may not have been traced.

    names: ids and names of the process's threads.
    """
    return frozenset(launching) | {tid for tid, name in names if is_autograd(name)}


def is_autograd(name: str) -> bool:
    """Whether a thread of this name is one of PyTorch's for backward passes."""
    return bool(_AUTOGRAD.fullmatch(name))
