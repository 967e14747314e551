"""The critical path of a sleep, back from the wake-up through the thread that woke the sleeper, its waker, and so on.

Back from the end of a sleep, each instant belongs to one thread in one state: the waker ran, or it was runnable, or it
slept itself, and then the path continues with its own waker; before its birth it continues with the thread that made
it. Producers that work side by side need no special rule: only the one that delivered last is on the critical path.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingero.diagnose.offcpu.gil_waits import gil_waits
from ingero.diagnose.offcpu.split_waits import merge_split_waits
from ingero.events import (
    ASKS_FILE_SYSTEM,
    LAST_CALL_KIND,
    LOCKS_FILE,
    OWN_REQUESTS,
    PAGE_FAULT,
    RECEIVES,
    THREAD_STATES,
    WAITS_FOR_EVENTS,
    WAKER_KINDS,
)
from ingero.store.arrays.arrays import OFFCPU_DTYPE

Array = np.ndarray[Any, np.dtype[Any]]

MAX_DEPTH = 64  # hops: a request to another thread and its answer are two
GIL = "gil"  # the state of a segment that waits for the interpreter lock of its process, or holds it
_THREAD = WAKER_KINDS.index("thread")
_SLEEPING = frozenset(THREAD_STATES.index(name) for name in ("sleep", "io", "uninterruptible"))

# A row of OFFCPU_DTYPE as Python numbers: paths read single fields thousands of times, which numpy makes slow.
_Interval = namedtuple("_Interval", OFFCPU_DTYPE.names or ())  # type: ignore[misc]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSegment:
    """A piece of a critical path: what the thread on it did from begin_ns to end_ns.

    state: a name of STATES, or GIL for a thread that waits for the interpreter lock or holds it. Where the path ends,
    it is the state of the sleep that no further thread explains; waker_kind and waker_pid are of that sleep.
    culprit_pid, culprit_name: what ran instead of a runnable thread. depth: hops from the path's own thread.
    call: the kind of system call that the thread slept in (`events.SENDS` and so on), 0 of another one or none.
    is_event_loop: the thread also waits for events (epoll), so that it gets its requests there. is_gpu_call: it was in
    a call that may wait for the GPU.
    """

    pid: int
    tid: int
    process: int
    comm: int
    state: str
    begin_ns: int
    end_ns: int
    culprit_pid: int = 0
    culprit_name: int = 0
    waker_kind: str = "none"
    waker_pid: int = 0
    depth: int = 0
    call: int = 0
    is_event_loop: bool = False
    is_gpu_call: bool = False

    @property
    def is_own_request(self) -> bool:
        """Whether the thread slept in a system call that requests something, such as a write."""
        return self.call in OWN_REQUESTS

    @property
    def is_receiving(self) -> bool:
        """Whether it read from one file, pipe or socket, or polled."""
        return self.call == RECEIVES

    @property
    def asks_file_system(self) -> bool:
        """Whether it looked at a file, synced or closed it."""
        return self.call == ASKS_FILE_SYSTEM

    @property
    def is_page_fault(self) -> bool:
        """Whether it touched a page that was not there."""
        return self.call == PAGE_FAULT

    @property
    def locks_file(self) -> bool:
        """Whether it wanted the lock of a file."""
        return self.call == LOCKS_FILE

    @property
    def is_answer(self) -> bool:
        """Whether the sleep was for an answer: an event loop that reads elsewhere asked there itself."""
        return self.is_receiving and self.is_event_loop

    @property
    def duration_ns(self) -> int:
        """The length of the segment, ns."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True)
class _Thread:
    """The off-CPU intervals of one thread in order of time, with contiguous begins and ends for searching."""

    rows: Array
    begins: Array
    ends: Array

    def within(self, begin_ns: int, end_ns: int) -> Array:
        """The intervals that touch [begin_ns, end_ns)."""
        return self.rows[self.ends.searchsorted(begin_ns, "right") : self.begins.searchsorted(end_ns, "left")]

    def latest_first(self, begin_ns: int, end_ns: int) -> list[Any]:
        """The intervals that touch [begin_ns, end_ns), latest first, as `_Interval`."""
        return [_Interval._make(row) for row in reversed(self.within(begin_ns, end_ns).tolist())]


class CriticalPaths:
    """The critical paths through recorded off-CPU intervals (`store.arrays.OFFCPU_DTYPE`).

    threads: (process, pid) of every traced thread by id; a traced thread without intervals ran all the time.
    """

    def __init__(self, offcpu: Array, threads: Mapping[int, tuple[int, int]]) -> None:
        self._threads = threads
        ends = offcpu["start_ns"] + offcpu["duration_ns"]
        order = np.lexsort((ends, offcpu["tid"]))
        borders = np.flatnonzero(np.diff(offcpu["tid"][order])) + 1
        parts = [merge_split_waits(mine) for mine in np.split(offcpu[order], borders) if len(mine)]
        self._of_thread = {
            int(mine["tid"][0]): _Thread(
                mine, np.ascontiguousarray(mine["start_ns"]), mine["start_ns"] + mine["duration_ns"]
            )
            for mine in parts
        }
        self._gil = gil_waits({tid: thread.rows for tid, thread in self._of_thread.items()})
        self._event_loops = {
            tid for tid, thread in self._of_thread.items() if (thread.rows["futex"] == WAITS_FOR_EVENTS).any()
        }
        self._pid_of = {tid: pid for tid, (_, pid) in threads.items()}
        self._pid_of |= {tid: int(thread.rows["pid"][0]) for tid, thread in self._of_thread.items()}

    def intervals(self, tid: int, begin_ns: int, end_ns: int) -> Array:
        """The off-CPU intervals of a thread that touch [begin_ns, end_ns), sorted by end."""
        mine = self._of_thread.get(tid)
        return np.zeros(0, OFFCPU_DTYPE) if mine is None else mine.within(begin_ns, end_ns)

    def sleeps_with_stacks(self, tid: int) -> Array:
        """The sleeps of a thread whose stack was taken as they began."""
        mine = self._of_thread.get(tid)
        return np.zeros(0, OFFCPU_DTYPE) if mine is None else mine.rows[mine.rows["stack_hash"] != 0]

    def path(self, tid: int, begin_ns: int, end_ns: int, *, outside_gpu_calls: bool = False) -> list[PathSegment]:
        """The path segments that explain the sleeps of a thread in [begin_ns, end_ns), latest first.

        Time in which the thread itself ran or was runnable is left out, because its thread-state time already counts
        it. outside_gpu_calls: without its own sleeps inside calls that may wait for the GPU.
        """
        segments: list[PathSegment] = []
        for interval in self._latest_first(tid, begin_ns, end_ns):
            is_left_out = outside_gpu_calls and interval.is_gpu_call and _state(interval.state) == "sleep"
            if interval.state in _SLEEPING and not is_left_out:
                self._interval(segments, interval, begin_ns, end_ns, 0)
        return [segment for segment in segments if segment.depth or segment.state not in {"runq", "run"}]

    def before(self, segment: PathSegment, length_ns: int) -> list[PathSegment]:
        """The path that led to a segment: what its thread did and waited for in length_ns before it, latest first."""
        found: list[PathSegment] = []
        if segment.tid in self._of_thread:
            at_ns = segment.begin_ns  # a wait for a CPU begins within an interval, whose first part is the sleep
            self._walk(found, segment.tid, at_ns - length_ns, at_ns, segment.depth, is_within=True)
        return found

    def _latest_first(self, tid: int, begin_ns: int, end_ns: int) -> list[Any]:
        mine = self._of_thread.get(tid)
        return [] if mine is None else mine.latest_first(begin_ns, end_ns)

    def _interval(self, found: list[PathSegment], interval: Any, begin_ns: int, end_ns: int, depth: int) -> None:
        start = max(interval.start_ns, begin_ns)
        end = min(interval.start_ns + interval.duration_ns, end_ns)
        state, woken = interval.state, interval.woken_ns
        if state not in _SLEEPING:
            found.append(_segment(interval, _state(state), start, end, depth))
            return
        woken = min(max(woken, start), end) if woken else end
        if end > woken:
            found.append(_segment(interval, "runq", woken, end, depth))
        reach = begin_ns if depth and self._is_handed_over(interval, depth) else start
        if woken <= reach:
            return
        is_gil = interval.start_ns in self._gil[interval.tid]
        is_followed = depth or interval.futex not in OWN_REQUESTS  # who takes what it writes is the end of that wait
        if interval.waker_kind == _THREAD and is_followed and depth < MAX_DEPTH and _state(state) == "sleep":
            first = len(found)
            self._follow(found, interval, reach, woken, depth + 1)
            if is_gil:
                found[first:] = [_held(segment, interval.pid) for segment in found[first:]]
        elif is_gil:
            found.append(_segment(interval, GIL, start, woken, depth))
        else:
            found.append(self._end(interval, _state(state), start, woken, depth))

    def _end(self, interval: Any, state: str, begin: int, end: int, depth: int) -> PathSegment:
        """The segment of a sleep whose waker is not followed; an unknown waker thread counts as its own process."""
        tid = interval.waker_tid
        kind, pid = WAKER_KINDS[interval.waker_kind], interval.waker_pid or self._pid_of.get(tid, tid)
        segment = _segment(interval, state, begin, end, depth, kind, pid)
        return replace(segment, is_event_loop=True) if interval.tid in self._event_loops else segment

    def _follow(self, found: list[PathSegment], sleeper: Any, begin_ns: int, at_ns: int, depth: int) -> None:
        """Adds what the waker of a sleep did until it woke the sleeper at at_ns."""
        tid = sleeper.waker_tid
        if tid in self._of_thread:
            self._walk(found, tid, begin_ns, at_ns, depth)
        else:
            found.append(self._ran_or_unknown(sleeper, tid, begin_ns, at_ns, depth))

    def _walk(
        self, found: list[PathSegment], tid: int, begin_ns: int, at_ns: int, depth: int, *, is_within: bool = False
    ) -> None:
        """Adds what a thread did until at_ns, back to begin_ns or to the sleep in which it waited for another thread.

        is_within: at_ns may lie in an interval, which counts up to then; otherwise the thread ran at that time.
        """
        now = at_ns
        for interval in self._latest_first(tid, begin_ns, at_ns):
            end = interval.start_ns + interval.duration_ns
            if end > now:
                if not is_within:
                    continue
                end = now
            if end < now:
                found.append(_ran(interval, end, now, depth))
            self._interval(found, interval, begin_ns, end, depth)
            now = max(interval.start_ns, begin_ns)
            if now <= begin_ns or self._is_handed_over(interval, depth):
                return
        if now > begin_ns:
            first = _Interval._make(self._of_thread[tid].rows[0].tolist())
            found.append(_ran(first, begin_ns, now, depth))

    def _ran_or_unknown(self, sleeper: Any, tid: int, begin_ns: int, at_ns: int, depth: int) -> PathSegment:
        """The segment of a waker without off-CPU intervals: a traced one ran, another one is not known."""
        if tid not in self._threads:
            return self._end(sleeper, "sleep", begin_ns, at_ns, depth - 1)
        process, pid = self._threads[tid]
        name = sleeper.waker_name
        return PathSegment(
            pid=pid, tid=tid, process=process, comm=name, state="run", begin_ns=begin_ns, end_ns=at_ns, depth=depth
        )

    def _is_handed_over(self, interval: Any, depth: int) -> bool:
        """Whether the path leaves this thread for its waker for good, so that earlier work of the thread is not on it.

        What the waker did before the sleep began is on the critical path: an item is late because its maker began late
        or took long, even while the thread that fetches it was busy with other items. The path stays with the thread
        where the waker was not traced, in a wait in the kernel, and in a wait for the interpreter lock, because the
        thread had not needed the lock before.
        """
        waker = interval.waker_tid
        is_followed = interval.waker_kind == _THREAD and (waker in self._of_thread or waker in self._threads)
        if not is_followed or depth >= MAX_DEPTH or _state(interval.state) != "sleep":
            return False
        return interval.start_ns not in self._gil[interval.tid]


def _state(number: int) -> str:
    return THREAD_STATES[number] if 0 <= number < len(THREAD_STATES) else "unknown"


def _segment(
    interval: Any, state: str, begin: int, end: int, depth: int, waker_kind: str = "none", waker_pid: int = 0
) -> PathSegment:
    return PathSegment(
        pid=interval.pid,
        tid=interval.tid,
        process=interval.process,
        comm=interval.comm,
        state=state,
        begin_ns=begin,
        end_ns=end,
        culprit_pid=interval.culprit_pid if state in {"runq", "yielded"} else 0,
        culprit_name=interval.culprit_name if state in {"runq", "yielded"} else 0,
        waker_kind=waker_kind,
        waker_pid=waker_pid,
        depth=depth,
        call=interval.futex if interval.futex <= LAST_CALL_KIND else 0,
        is_gpu_call=bool(interval.is_gpu_call),
    )


def _held(segment: PathSegment, pid: int) -> PathSegment:
    """A segment in the path of a wait for the interpreter lock: a thread of the process that ran held the lock."""
    return replace(segment, state=GIL) if segment.state == "run" and segment.pid == pid else segment


def _ran(interval: Any, begin: int, end: int, depth: int) -> PathSegment:
    return PathSegment(
        pid=interval.pid,
        tid=interval.tid,
        process=interval.process,
        comm=interval.comm,
        state="run",
        begin_ns=begin,
        end_ns=end,
        depth=depth,
    )
