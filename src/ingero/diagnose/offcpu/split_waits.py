"""Waits that a timeout cuts up: whoever looks now and then whether what it waits for lives waits all the while.

PyTorch's loader asks for its next batch for five seconds at a time, and looks in between whether its workers live. Only
the last of these sleeps ends in the worker that delivers; the others end by a timer, and would seem to be nobody's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.events import INTERPRETER_LOCK, THREAD_STATES, WAKER_KINDS

Array = np.ndarray[Any, np.dtype[Any]]

_LONGER_NS = 25_000_000  # waits for the interpreter lock are cut up as well, into shorter sleeps: gil_waits knows them
_AWAKE = 0.01  # of the sleep before: more than a look at something is work, and the wait begins anew
_AWAKE_UNSEEN = 0.001  # where it is not known of both at which frames they began: not every sleep is looked at
_SLEEP = THREAD_STATES.index("sleep")
_TIMER = WAKER_KINDS.index("timer")


def in_one(rows: Array) -> Array:
    """The intervals off the CPU of one thread, in order of time, with each such wait as one sleep.

    Known by where its sleeps began: at the same Python frames, one right after the other; where that of one was not
    looked at, by that alone. One whose last sleep ends by a timer as well is left as it is: nobody is known to have
    ended it.
    """
    if len(rows) < 2:
        return rows
    before, after = rows[:-1], rows[1:]
    is_asleep = (rows["state"] == _SLEEP) & ((rows["futex"] & INTERPRETER_LOCK) == 0)
    is_seen = rows["stack_hash"] != 0
    awake_ns = after["start_ns"] - before["start_ns"] - before["duration_ns"]
    goes_on = is_asleep[:-1] & is_asleep[1:] & (before["waker_kind"] == _TIMER)
    is_known = is_seen[:-1] & is_seen[1:]
    goes_on &= ~is_known | (before["stack_hash"] == after["stack_hash"])
    goes_on &= (is_seen[:-1] | is_seen[1:]) & (before["duration_ns"] > _LONGER_NS)
    goes_on &= awake_ns <= np.where(is_known, _AWAKE, _AWAKE_UNSEEN) * before["duration_ns"]
    if not goes_on.any():
        return rows
    first = np.flatnonzero(np.append(True, ~goes_on))  # of each wait its first sleep, and its last
    last = np.append(first[1:], len(rows)) - 1
    joins = rows["waker_kind"][last] != _TIMER
    is_kept = np.append(~goes_on, True)
    is_kept |= np.repeat(~joins, last - first + 1)
    found: Array = rows.copy()
    ends_ns = found["start_ns"][last] + found["duration_ns"][last]
    found["start_ns"][last[joins]] = rows["start_ns"][first[joins]]
    found["duration_ns"][last[joins]] = (ends_ns - rows["start_ns"][first])[joins]
    whole: Array = found[is_kept]
    return whole
