"""Which sleeps are waits for CPython's interpreter lock: by where they slept, else by their signature.

Where the agent could read the interpreter, sleeps at its lock are marked. Of others there is a signature: a thread
that waits for the lock sleeps for the switch interval (5 ms unless changed), asks for the lock, and sleeps again until
the thread that holds it hands it over. Another thread of its process was awake all that time: that tells it from a loop
that polls every 5 ms. On busy CPUs it may be preempted in between, or find the lock free when its timer has level.

A few such sleeps tell where the lock is, because where they slept is recorded in any case, and then every sleep there
is a wait for it, also those that ended before a switch interval had passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ingero.events import INTERPRETER_LOCK, OWN_REQUEST, THREAD_STATES, WAKER_KINDS

Array = np.ndarray[Any, np.dtype[Any]]

GIL_WAIT_NS = (4_900_000, 5_800_000)
_RUN_BETWEEN_NS = 500_000  # what a thread does between two sleeps of one wait
_HANDED_OVER_NS = 4 * GIL_WAIT_NS[1]
_HOLDER_AWAKE = 0.8  # of the sleep
_SURE_SHARE = 0.2  # of all sleeps of that length of a thread, before those without a sleep after them count, too
_SURE_WAITS = 3  # at one place, before it is taken for the lock's
_MOST_LONGER = 0.02  # of the sleeps there, whose timers were late; nobody waits for the lock for longer at a time
_PLACE_BYTES = 8  # the two words of a condition variable, which take turns, lie side by side
_THREAD = WAKER_KINDS.index("thread")
_TIMER = WAKER_KINDS.index("timer")
_ASLEEP = tuple(THREAD_STATES.index(name) for name in ("sleep", "io", "uninterruptible"))


def gil_waits(of_thread: Mapping[int, Array]) -> dict[int, set[int]]:
    """By thread, the begins of its sleeps that wait for the lock; the intervals of each thread are in order of time."""
    processes: dict[int, list[int]] = {}
    for tid, intervals in of_thread.items():
        processes.setdefault(int(intervals["pid"][0]), []).append(tid)
    found: dict[int, set[int]] = {}
    for tid, intervals in of_thread.items():
        siblings = [of_thread[other] for other in processes[int(intervals["pid"][0])] if other != tid]
        found[tid] = set(_waits(intervals, siblings)) | _marked(intervals)
    for tids in processes.values():
        places = _places({tid: of_thread[tid] for tid in tids}, found)
        for tid in tids:
            found[tid].update(_begins_at(of_thread[tid], places))
    return found


def _marked(intervals: Array) -> set[int]:
    """The begins of the sleeps at the interpreter's own lock."""
    return set(intervals["start_ns"][(intervals["futex"] & INTERPRETER_LOCK) != 0].tolist())


def _places(of_thread: Mapping[int, Array], waits: Mapping[int, set[int]]) -> set[int]:
    """Where the threads of one process wait for the lock, by those of their sleeps that surely do."""
    sure, longer, all_of = Counter[int](), Counter[int](), Counter[int]()
    for tid, intervals in of_thread.items():
        asleep = intervals[intervals["futex"] > OWN_REQUEST]
        place, slept = asleep["futex"] // _PLACE_BYTES, asleep["woken_ns"] - asleep["start_ns"]
        all_of.update(place.tolist())
        sure.update(place[np.isin(asleep["start_ns"], list(waits[tid]))].tolist())
        longer.update(place[slept > GIL_WAIT_NS[1]].tolist())
    return {one for one, count in sure.items() if count >= _SURE_WAITS and longer[one] <= _MOST_LONGER * all_of[one]}


def _begins_at(intervals: Array, places: Iterable[int]) -> Iterator[int]:
    """The begins of the sleeps at these places."""
    mine = (intervals["futex"] > OWN_REQUEST) & np.isin(intervals["futex"] // _PLACE_BYTES, list(places))
    yield from intervals["start_ns"][mine].tolist()


def _waits(intervals: Array, siblings: list[Array]) -> list[int]:
    begins, lengths = intervals["start_ns"], intervals["duration_ns"]
    is_asleep = np.isin(intervals["state"], _ASLEEP)
    off = np.concatenate(([0], np.cumsum(lengths)))  # off the CPU before each interval
    chosen = np.flatnonzero(is_asleep)
    asleep = (intervals["woken_ns"] - begins)[chosen]
    kind = intervals["waker_kind"][chosen]
    timed = (kind == _TIMER) & (asleep >= GIL_WAIT_NS[0]) & (asleep <= GIL_WAIT_NS[1])
    if not timed.any():
        return []
    handed = (kind == _THREAD) & (asleep < _HANDED_OVER_NS)
    ends = begins[chosen] + np.minimum(asleep, lengths[chosen])
    timed &= _is_held(begins[chosen], ends, siblings)
    sure = np.zeros(len(chosen), bool)
    ran = np.diff(begins[chosen]) - np.diff(off[chosen])
    sure[:-1] = timed[:-1] & (ran < _RUN_BETWEEN_NS) & (timed | handed)[1:]
    waits = timed if sure.sum() >= _SURE_SHARE * timed.sum() else sure
    found: list[int] = begins[chosen][waits].tolist()
    return found


def _is_held(begins: Array, ends: Array, siblings: list[Array]) -> Array:
    """Whether one other thread was awake, or kept from running, for most of each of these time ranges."""
    held = np.zeros(len(begins), bool)
    for one in siblings:
        asleep = one[np.isin(one["state"], _ASLEEP)]
        slept = _slept_before(asleep, ends) - _slept_before(asleep, begins)
        held |= slept <= (1 - _HOLDER_AWAKE) * (ends - begins)
    return held


def _slept_before(asleep: Array, times: Array) -> Array:
    """How long a thread had slept before each of these moments; its sleeps are in order of time, woken or not."""
    if not len(asleep):
        return np.zeros(len(times), np.int64)
    starts = asleep["start_ns"]
    woken = asleep["woken_ns"] - starts
    lengths = np.where((woken > 0) & (woken < asleep["duration_ns"]), woken, asleep["duration_ns"])
    total = np.concatenate(([0], np.cumsum(lengths)))
    index = np.searchsorted(starts, times, side="right")
    last = np.maximum(index - 1, 0)
    overshoot = np.where(index > 0, np.maximum(starts[last] + lengths[last] - times, 0), 0)
    result: Array = total[index] - overshoot
    return result
