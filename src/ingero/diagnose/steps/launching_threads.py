"""The threads of a process that feed its GPU by turns: what one does while another sleeps until it is done is the step.

PyTorch launches the backward pass from a thread of its own, while the one that called it sleeps. The clocks of a sync
interval are of one thread, whose sleep is then most of the step. Here that sleep becomes what the other one did with
it: it ran, or it could have run and others did. What that one waited for in turn stays sleep, and its path tells the
rest.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.offcpu.critical_path import Segment
from ingero.events import STATES, SyncIntervalFlag

Array = np.ndarray[Any, np.dtype[Any]]

WORTH_NS = 200_000  # shorter sleeps hold no recorded interval off the CPU
_STATES = tuple(name for name in ("run", "runq", "throttled", "yielded") if name in STATES)  # on a CPU, or kept off it
_AUTOGRAD = re.compile(r"pt_autograd_\d+")  # the name that PyTorch gives the threads of its backward passes
_SLEEP = STATES.index("sleep")


@dataclass(frozen=True, slots=True)
class Ends:
    """Names of a sync interval's fields: length of a part, whose waits are meant, its begin and end, its clocks."""

    length: str
    tid: str
    begin: str
    end: str
    clocks: str


EMPTY = Ends(
    "idle_ns", "prev_sync_tid", "prev_sync_end_ns", "first_launch_ns", "idle_state_ns"
)  # of the syncing thread
ENQUEUE = Ends(
    "busy_ns", "first_launch_tid", "first_launch_ns", "sync_start_ns", "launch_state_ns"
)  # of the enqueuing one


class Launching:
    """The threads of one process that launch.

    threads: their ids. path: what the sleeps of a thread between two moments went into (see `Waits.path`).
    """

    def __init__(self, threads: Collection[int], path: Callable[..., list[Segment]]) -> None:
        self.threads, self._path = frozenset(threads), path

    def has(self, one: Segment) -> bool:
        """Whether a piece of a path is a thread that launches while another one waits for it."""
        return one.depth > 0 and one.tid in self.threads and one.state in _STATES

    def path(self, sync_interval: Any, ends: Ends) -> list[Segment]:
        """Of a part of a sync interval; for a step by repetition without sleeps in calls that may wait for the GPU."""
        is_step = bool(sync_interval["flags"] & int(SyncIntervalFlag.STEP))
        begin_ns, end_ns = int(sync_interval[ends.begin]), int(sync_interval[ends.end])
        return self._path(int(sync_interval[ends.tid]), begin_ns, end_ns, outside_gpu_calls=is_step)

    def as_one(self, sync_intervals: Array) -> Array:
        """The same sync intervals (`store.arrays.SYNC_INTERVAL_DTYPE`), with these threads' clocks as if of one."""
        if len(self.threads) < 2:
            return sync_intervals
        found: Array = sync_intervals.copy()
        for ends in (EMPTY, ENQUEUE):
            clocks = found[ends.clocks]
            for index in np.flatnonzero(clocks[:, _SLEEP] > WORTH_NS).tolist():
                spent = Counter[str]()
                for one in self.path(found[index], ends):
                    if self.has(one):
                        spent[one.state] += one.duration_ns
                scale = min(1.0, int(clocks[index, _SLEEP]) / max(spent.total(), 1))
                for state, ns in spent.items():
                    clocks[index, STATES.index(state)] += int(ns * scale)
                    clocks[index, _SLEEP] -= int(ns * scale)
        return found

    def spans(self, sync_intervals: Array) -> dict[int, list[tuple[int, int]]]:
        """When these threads ran while another waited, by thread, in the host's parts of these sync intervals."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for one in self._pieces(sync_intervals) if len(self.threads) > 1 else ():
            if self.has(one) and one.state == "run":
                found[one.tid].append((one.begin_ns, one.end_ns))
        return found

    def _pieces(self, sync_intervals: Array) -> Iterator[Segment]:
        for ends in (EMPTY, ENQUEUE):
            for sync_interval in sync_intervals[sync_intervals[ends.length] > WORTH_NS]:
                yield from self.path(sync_interval, ends)


def launching_threads(launching: Iterable[int], names: Iterable[tuple[int, str]]) -> frozenset[int]:
    """Those with recorded launches and PyTorch's own, whose launches may not have been traced.

    names: ids and names of the process's threads.
    """
    return frozenset(launching) | {tid for tid, name in names if _AUTOGRAD.fullmatch(name)}
