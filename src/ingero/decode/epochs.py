"""When was the device ready? Splits each drain's interval into empty, busy and picked up late, with the error.

T = b - a = E + X + P: a the previous drain's return, f the first enqueue, r the moment the device was ready, b the
return. Everything but r is measured; r is exact where the thread slept until then, and an interval where it was
descheduled while it polled. The rules and their error are measured in docs/adr/0004-readiness.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

WOKEN = 1 << 2  # bpf/events.h, enum epoch_flag
NO_WAIT_NS = 30_000  # a drain this short that was never off the CPU found the device ready
SPIN_NS = 50_000  # a thread that ran longer than this after its last wait had polled and found the device busy
NEVER_POLLED_NS = 5_000  # descheduled this soon after entry: it had not looked at the device yet
SLEEPER_SHARE = 0.2  # a lane whose drains sleep: one that did not sleep did not wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Per epoch, CLOCK_MONOTONIC ns, shape (n,): when the device was ready at the earliest, at the latest, probably.

    is_no_wait: the device was ready when the drain began. is_estimated: `ready` is a point inside [low, high].
    """

    low: Array
    high: Array
    ready: Array
    is_no_wait: Array
    is_estimated: Array


def readiness(epochs: Array, busy_hint_ns: float | None = None) -> Readiness:
    """Applies the rules to the epochs of one lane (`struct epoch_record`), in order of time.

    Args:
        busy_hint_ns: the lane's usual f-to-r time; None: the one that most of these epochs contain.
    """
    first, drain, back = (epochs[name].astype(np.int64) for name in ("first_ns", "drain_ns", "return_ns"))
    off, on = epochs["last_off_ns"].astype(np.int64), epochs["last_on_ns"].astype(np.int64)
    woken = (epochs["flags"] & WOKEN) != 0
    was_off = on > drain
    descheduled = ~woken & was_off & (back - on < SPIN_NS)
    is_sleeper = len(epochs) > 0 and woken.mean() > SLEEPER_SHARE
    no_wait = ~woken & ~was_off & (is_sleeper | (back - drain < NO_WAIT_NS))
    low, high = back.copy(), back.copy()
    low[woken] = high[woken] = epochs["woken_ns"][woken].astype(np.int64)
    low[no_wait] = high[no_wait] = drain[no_wait]
    low[descheduled] = np.maximum(off, drain)[descheduled]
    high[descheduled] = on[descheduled]
    unpolled = descheduled & (off - drain < NEVER_POLLED_NS)
    low[unpolled] = drain[unpolled]
    low, high = np.maximum(low, first), np.maximum(high, first)
    ready = high.copy()
    if descheduled.any():
        busy = covered_by_most(low - first, high - first) if busy_hint_ns is None else busy_hint_ns
        estimate = np.clip(first + int(busy), low, high)
        ready[descheduled] = estimate[descheduled]
    return Readiness(low=low, high=high, ready=ready, is_no_wait=no_wait, is_estimated=descheduled)


def covered_by_most(low: Array, high: Array) -> float:
    """The value that most of the intervals contain: the middle of the stretch where the most overlap.

    Exact points count as intervals of 1 % width, else no two of them would ever overlap.
    """
    widen = np.maximum((np.abs(low) * 0.005).astype(np.int64), 500)
    exact = high - low < 2 * widen
    begins = np.where(exact, low - widen, low)
    ends = np.where(exact, high + widen, high)
    at = np.concatenate([begins, ends])
    step = np.concatenate([np.ones(len(begins), np.int64), -np.ones(len(ends), np.int64)])
    order = np.lexsort((-step, at))
    depth = np.cumsum(step[order])
    deepest = int(np.argmax(depth))
    stretch_end = deepest + 1 if deepest + 1 < len(order) else deepest
    return float(at[order][deepest] + at[order][stretch_end]) / 2


def op_ids(op_set: Array) -> list[int]:
    """The operation ids of a set of 4 words."""
    return [word * 64 + bit for word in range(len(op_set)) for bit in range(64) if int(op_set[word]) >> bit & 1]


def class_key(op_names: str, launches: int, size_bytes: int, graph: int) -> str:
    """Epochs of one class do the same work: same operations, launches and bytes within a factor of two, same graph."""
    return f"{op_names}|2^{int(launches).bit_length()} launches|2^{int(size_bytes).bit_length()} bytes|{int(graph):x}"
