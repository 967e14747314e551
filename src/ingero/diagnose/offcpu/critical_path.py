"""Why a thread slept: the critical path back from its wake-up through whoever woke it.

Walking back from the end of a sleep, each moment belongs to one thread in one state: the waker ran, or it was runnable
and others ran, or it slept itself, and then the path goes on with its own waker. Producers that work side by side need
no special rule: only the one that delivered last is on the critical path.
"""

from __future__ import annotations

from collections import defaultdict, namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingero.diagnose.offcpu.gil_waits import gil_waits
from ingero.diagnose.offcpu.split_waits import in_one
from ingero.events import OWN_REQUEST, THREAD_STATES, WAKER_KINDS
from ingero.store.arrays.arrays import OFFCPU_DTYPE

Array = np.ndarray[Any, np.dtype[Any]]

MAX_DEPTH = 64  # hops: a question to another thread and its answer are two
GIL = "gil"  # the state of a segment that waits for the interpreter lock of its process
_THREAD = WAKER_KINDS.index("thread")
_SLEEPING = frozenset(THREAD_STATES.index(name) for name in ("sleep", "io", "uninterruptible"))

# A row of OFFCPU_DTYPE as Python's own numbers: paths ask for its fields one by one, thousands of times.
_Interval = namedtuple("_Interval", OFFCPU_DTYPE.names or ())  # type: ignore[misc]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of a path: what the thread on it did from begin_ns to end_ns.

    state: a name of STATES, or GIL, of who waits for it or holds it; for the end of a path that no thread's doing
    explains, the state it slept in, with the kind of waker that ended it. waker: of that sleep.
    is_own_request: it slept in a system call with which it asks for something, such as a write. is_gpu_call: it was
    in a call that may wait for the GPU.
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
    is_own_request: bool = False
    is_gpu_call: bool = False

    @property
    def duration_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True)
class _Thread:
    """The intervals of one thread in order of time, with their begins and ends side by side for searching."""

    rows: Array
    begins: Array
    ends: Array

    def within(self, begin_ns: int, end_ns: int) -> Array:
        """Those that touch [begin_ns, end_ns)."""
        return self.rows[self.ends.searchsorted(begin_ns, "right") : self.begins.searchsorted(end_ns, "left")]

    def latest_first(self, begin_ns: int, end_ns: int) -> list[Any]:
        """The same to walk back through."""
        return [_Interval._make(row) for row in reversed(self.within(begin_ns, end_ns).tolist())]


class Waits:
    """Paths through the recorded intervals off the CPU (`store.arrays.OFFCPU_DTYPE`).

    threads: (process, pid) of every traced thread: one without intervals ran all the time.
    """

    def __init__(self, offcpu: Array, threads: Mapping[int, tuple[int, int]]) -> None:
        self._threads = threads
        ends = offcpu["start_ns"] + offcpu["duration_ns"]
        order = np.lexsort((ends, offcpu["tid"]))
        borders = np.flatnonzero(np.diff(offcpu["tid"][order])) + 1
        parts = [in_one(mine) for mine in np.split(offcpu[order], borders) if len(mine)]
        self._of_thread = {
            int(mine["tid"][0]): _Thread(
                mine, np.ascontiguousarray(mine["start_ns"]), mine["start_ns"] + mine["duration_ns"]
            )
            for mine in parts
        }
        self._gil = gil_waits({tid: thread.rows for tid, thread in self._of_thread.items()})
        self._pid_of = {tid: pid for tid, (_, pid) in threads.items()}
        self._pid_of |= {tid: int(thread.rows["pid"][0]) for tid, thread in self._of_thread.items()}

    def intervals(self, tid: int, begin_ns: int, end_ns: int) -> Array:
        """The intervals of a thread that touch [begin_ns, end_ns), by their end."""
        mine = self._of_thread.get(tid)
        return np.zeros(0, OFFCPU_DTYPE) if mine is None else mine.within(begin_ns, end_ns)

    def looks(self, tid: int) -> Array:
        """Those sleeps of a thread whose frames were looked at as they began."""
        mine = self._of_thread.get(tid)
        return np.zeros(0, OFFCPU_DTYPE) if mine is None else mine.rows[mine.rows["stack_hash"] != 0]

    def path(self, tid: int, begin_ns: int, end_ns: int, *, outside_gpu_calls: bool = False) -> list[Segment]:
        """What the sleeps of a thread in [begin_ns, end_ns) went into, latest first.

        When it ran or was runnable itself is left out: its own clocks say that.
        outside_gpu_calls: without its own sleeps inside calls that may wait for the GPU.
        """
        segments: list[Segment] = []
        for interval in self._latest_first(tid, begin_ns, end_ns):
            is_left_out = outside_gpu_calls and interval.is_gpu_call and _state(interval.state) == "sleep"
            if interval.state in _SLEEPING and not is_left_out:
                self._interval(segments, interval, begin_ns, end_ns, 0)
        return [one for one in segments if one.depth or one.state not in {"runq", "run"}]

    def before(self, segment: Segment, length_ns: int) -> list[Segment]:
        """What led to a piece of a path: what its thread did and waited for in so much time before; latest first."""
        found: list[Segment] = []
        if segment.tid in self._of_thread:
            at_ns = segment.begin_ns  # a wait for a CPU begins within an interval, whose first part is the sleep
            self._walk(found, segment.tid, at_ns - length_ns, at_ns, segment.depth, is_within=True)
        return found

    def _latest_first(self, tid: int, begin_ns: int, end_ns: int) -> list[Any]:
        mine = self._of_thread.get(tid)
        return [] if mine is None else mine.latest_first(begin_ns, end_ns)

    def _interval(self, found: list[Segment], interval: Any, begin_ns: int, end_ns: int, depth: int) -> None:
        start = max(interval.start_ns, begin_ns)
        end = min(interval.start_ns + interval.duration_ns, end_ns)
        state, woken = interval.state, interval.woken_ns
        if state not in _SLEEPING:
            found.append(_segment(interval, _state(state), start, end, depth))
            return
        woken = min(max(woken, start), end) if woken else end
        if end > woken:
            found.append(_segment(interval, "runq", woken, end, depth))
        if woken <= start:
            return
        is_gil = interval.start_ns in self._gil[interval.tid]
        if interval.waker_kind == _THREAD and depth < MAX_DEPTH and _state(state) == "sleep":
            first = len(found)
            reach = begin_ns if depth and self._is_handed_over(interval, depth) else start
            self._follow(found, interval, reach, woken, depth + 1)
            if is_gil:
                found[first:] = [_held(one, interval.pid) for one in found[first:]]
        elif is_gil:
            found.append(_segment(interval, GIL, start, woken, depth))
        else:
            found.append(self._end(interval, _state(state), start, woken, depth))

    def _end(self, interval: Any, state: str, begin: int, end: int, depth: int) -> Segment:
        """A sleep whose waker is not followed; a thread that was never seen itself stands for its process."""
        tid = interval.waker_tid
        kind, pid = WAKER_KINDS[interval.waker_kind], interval.waker_pid or self._pid_of.get(tid, tid)
        return _segment(interval, state, begin, end, depth, kind, pid)

    def _follow(self, found: list[Segment], sleeper: Any, begin_ns: int, at_ns: int, depth: int) -> None:
        """What the waker of a sleep did until it woke the sleeper at at_ns."""
        tid = sleeper.waker_tid
        if tid in self._of_thread:
            self._walk(found, tid, begin_ns, at_ns, depth)
        else:
            found.append(self._ran_or_unknown(sleeper, tid, begin_ns, at_ns, depth))

    def _walk(
        self, found: list[Segment], tid: int, begin_ns: int, at_ns: int, depth: int, *, is_within: bool = False
    ) -> None:
        """What a thread did until at_ns, back to begin_ns or to the sleep in which it waited for another thread.

        is_within: at_ns may lie in an interval, which counts up to then; else the thread ran at that moment.
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

    def _ran_or_unknown(self, sleeper: Any, tid: int, begin_ns: int, at_ns: int, depth: int) -> Segment:
        """A thread without intervals off the CPU: a traced one was on it."""
        if tid not in self._threads:
            return self._end(sleeper, "sleep", begin_ns, at_ns, depth - 1)
        process, pid = self._threads[tid]
        name = sleeper.waker_name
        return Segment(
            pid=pid, tid=tid, process=process, comm=name, state="run", begin_ns=begin_ns, end_ns=at_ns, depth=depth
        )

    def _is_handed_over(self, interval: Any, depth: int) -> bool:
        """Whether the path leaves this thread for its waker for good: what it did before its sleep is not on the
        critical path.

        What the waker did before that sleep began is: an item is late because whoever made it began late or took long,
        also while the one that fetches it was busy with others. The path stays where the waker was not traced, in a
        wait in the kernel, whoever ended that, and in one for the interpreter lock, which is wanted only then.
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
) -> Segment:
    return Segment(
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
        is_own_request=interval.futex == OWN_REQUEST,
        is_gpu_call=bool(interval.is_gpu_call),
    )


def _held(one: Segment, pid: int) -> Segment:
    """A piece of the path of a wait for the interpreter lock: while it ran, its thread held it."""
    return replace(one, state=GIL) if one.state == "run" and one.pid == pid else one


def _ran(interval: Any, begin: int, end: int, depth: int) -> Segment:
    return Segment(
        pid=interval.pid,
        tid=interval.tid,
        process=interval.process,
        comm=interval.comm,
        state="run",
        begin_ns=begin,
        end_ns=end,
        depth=depth,
    )


def waited_on(segments: Sequence[Segment]) -> Iterator[tuple[tuple[int, int, str, str], int]]:
    """Time by (pid, thread's name number, state, kind of waker), most first."""
    sums: dict[tuple[int, int, str, str], int] = defaultdict(int)
    for one in segments:
        sums[one.pid, one.comm, one.state, one.waker_kind] += one.duration_ns
    yield from sorted(sums.items(), key=lambda item: -item[1])
