"""Merging of waits that timeouts split: a thread that wakes up only to check whether its worker lives is still waiting.

PyTorch's loader waits for its next batch for five seconds at a time, and checks in between whether its workers live.
Only the last of these sleeps is ended by the worker that delivers; the others end by a timer, without a waker to blame.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.events import INTERPRETER_LOCK, THREAD_STATES, WAKER_KINDS

Array = np.ndarray[Any, np.dtype[Any]]

_MIN_SLEEP_NS = 25_000_000  # waits for the interpreter lock are split into shorter sleeps, which gil_waits handles
_MAX_AWAKE = 0.01  # of the sleep before: more is work, and a new wait begins after it
_MAX_AWAKE_UNSEEN = 0.001  # of the sleep before, where the stack of one of both sleeps was not taken
_SLEEP = THREAD_STATES.index("sleep")
_TIMER = WAKER_KINDS.index("timer")


def merge_split_waits(rows: Array) -> Array:
    """The off-CPU intervals of one thread, in order of time, with each split wait merged into one sleep.

    Sleeps are of one wait if they began at the same Python frames, one right after the other; if the stack of one was
    not taken, the second condition decides. A wait whose last sleep also ends by a timer is left as it is, because its
    waker is not known.
    """
    if len(rows) < 2:
        return rows
    before, after = rows[:-1], rows[1:]
    is_asleep = (rows["state"] == _SLEEP) & ((rows["futex"] & INTERPRETER_LOCK) == 0)
    is_seen = rows["stack_hash"] != 0
    awake_ns = after["start_ns"] - before["start_ns"] - before["duration_ns"]
    continues = is_asleep[:-1] & is_asleep[1:] & (before["waker_kind"] == _TIMER)
    is_known = is_seen[:-1] & is_seen[1:]
    continues &= ~is_known | (before["stack_hash"] == after["stack_hash"])
    continues &= (is_seen[:-1] | is_seen[1:]) & (before["duration_ns"] > _MIN_SLEEP_NS)
    continues &= awake_ns <= np.where(is_known, _MAX_AWAKE, _MAX_AWAKE_UNSEEN) * before["duration_ns"]
    if not continues.any():
        return rows
    first = np.flatnonzero(np.append(True, ~continues))  # the first and the last sleep of each wait
    last = np.append(first[1:], len(rows)) - 1
    has_waker = rows["waker_kind"][last] != _TIMER
    is_kept = np.append(~continues, True)
    is_kept |= np.repeat(~has_waker, last - first + 1)
    found: Array = rows.copy()
    ends_ns = found["start_ns"][last] + found["duration_ns"][last]
    found["start_ns"][last[has_waker]] = rows["start_ns"][first[has_waker]]
    found["duration_ns"][last[has_waker]] = (ends_ns - rows["start_ns"][first])[has_waker]
    whole: Array = found[is_kept]
    return whole
