"""The sleeps that are waits for CPython's interpreter lock, by the address at which they slept or by their signature.

Where the agent could read the interpreter, sleeps at its lock are marked. Other sleeps are known by a signature: a
thread that waits for the lock sleeps for the switch interval (5 ms unless changed), requests the lock, and sleeps again
until the holder hands it over. Another thread of its process was awake all that time, unlike in a loop that polls every
5 ms. On busy CPUs the waiter may be preempted in between, or find the lock free when its timer has expired.

A few such sleeps show the address of the lock, which is recorded for every sleep, and then every sleep at that address
is a wait for the lock, even if it ended before a switch interval had passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ingero.events import INTERPRETER_LOCK, LAST_CALL_KIND, THREAD_STATES, WAKER_KINDS

Array = np.ndarray[Any, np.dtype[Any]]

GIL_WAIT_NS = (4_900_000, 5_800_000)  # shortest and longest sleep of one switch interval, 5 ms
_MAX_RUN_BETWEEN_NS = 500_000  # of a thread between two sleeps of one wait
_MAX_HAND_OVER_NS = 4 * GIL_WAIT_NS[1]  # of the last sleep of a wait
_MIN_HOLDER_AWAKE = 0.8  # of the sleep
_MIN_CERTAIN_SHARE = 0.2  # of a thread's sleeps of that length, before those without a second sleep count too
_MIN_CERTAIN_WAITS = 3  # at one address, before it is taken for the lock's
_MAX_LONGER_SHARE = 0.02  # of the sleeps there (late timers); no wait for the lock sleeps longer at a time
_ADDRESS_BYTES = 8  # the two words of a condition variable, used in turn, lie side by side
_THREAD = WAKER_KINDS.index("thread")
_TIMER = WAKER_KINDS.index("timer")
_ASLEEP = tuple(THREAD_STATES.index(name) for name in ("sleep", "io", "uninterruptible"))


def gil_waits(of_thread: Mapping[int, Array]) -> dict[int, set[int]]:
    """The begins of each thread's sleeps that wait for the lock, by thread id.

    of_thread: off-CPU intervals by thread id, in order of time.
    """
    processes: dict[int, list[int]] = {}
    for tid, intervals in of_thread.items():
        processes.setdefault(int(intervals["pid"][0]), []).append(tid)
    found: dict[int, set[int]] = {}
    for tid, intervals in of_thread.items():
        siblings = [of_thread[other] for other in processes[int(intervals["pid"][0])] if other != tid]
        found[tid] = set(_waits(intervals, siblings)) | _marked(intervals)
    for tids in processes.values():
        addresses = _lock_addresses({tid: of_thread[tid] for tid in tids}, found)
        for tid in tids:
            found[tid].update(_begins_at(of_thread[tid], addresses))
    return found


def _marked(intervals: Array) -> set[int]:
    """The begins of the sleeps that the agent marked as waits at the interpreter's lock."""
    return set(intervals["start_ns"][(intervals["futex"] & INTERPRETER_LOCK) != 0].tolist())


def _lock_addresses(of_thread: Mapping[int, Array], waits: Mapping[int, set[int]]) -> set[int]:
    """The addresses, in units of _ADDRESS_BYTES, at which the threads of one process wait for the lock."""
    certain, longer, total = Counter[int](), Counter[int](), Counter[int]()
    for tid, intervals in of_thread.items():
        asleep = intervals[intervals["futex"] > LAST_CALL_KIND]
        address, slept = asleep["futex"] // _ADDRESS_BYTES, asleep["woken_ns"] - asleep["start_ns"]
        total.update(address.tolist())
        certain.update(address[np.isin(asleep["start_ns"], list(waits[tid]))].tolist())
        longer.update(address[slept > GIL_WAIT_NS[1]].tolist())
    likely = [address for address, count in certain.items() if count >= _MIN_CERTAIN_WAITS]
    return {address for address in likely if longer[address] <= _MAX_LONGER_SHARE * total[address]}


def _begins_at(intervals: Array, addresses: Iterable[int]) -> Iterator[int]:
    """The begins of the sleeps at these addresses, in units of _ADDRESS_BYTES."""
    mine = (intervals["futex"] > LAST_CALL_KIND) & np.isin(intervals["futex"] // _ADDRESS_BYTES, list(addresses))
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
    handed_over = (kind == _THREAD) & (asleep < _MAX_HAND_OVER_NS)
    ends = begins[chosen] + np.minimum(asleep, lengths[chosen])
    timed &= _is_held(begins[chosen], ends, siblings)
    certain = np.zeros(len(chosen), bool)
    ran = np.diff(begins[chosen]) - np.diff(off[chosen])
    certain[:-1] = timed[:-1] & (ran < _MAX_RUN_BETWEEN_NS) & (timed | handed_over)[1:]
    waits = timed if certain.sum() >= _MIN_CERTAIN_SHARE * timed.sum() else certain
    found: list[int] = begins[chosen][waits].tolist()
    return found


def _is_held(begins: Array, ends: Array, siblings: list[Array]) -> Array:
    """A mask of the time ranges for most of which a single other thread was awake, or kept from running."""
    held = np.zeros(len(begins), bool)
    for intervals in siblings:
        asleep = intervals[np.isin(intervals["state"], _ASLEEP)]
        slept = _slept_before(asleep, ends) - _slept_before(asleep, begins)
        held |= slept <= (1 - _MIN_HOLDER_AWAKE) * (ends - begins)
    return held


def _slept_before(asleep: Array, times: Array) -> Array:
    """How long a thread had slept before each of these times, ns; `asleep` is in order of time, woken or not."""
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
