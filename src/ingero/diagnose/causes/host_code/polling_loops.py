"""Loops that look for work without ever sleeping: on a CPU all the time, though nobody asks for anything.

A server may ask its sockets with a timeout of zero, again and again. What tells it from computing is where its samples
are: part of them in the very system calls that ask whether something has come.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.recorded import SAMPLES
from ingero.diagnose.samples.process_roles import data_workers
from ingero.diagnose.samples.stack_samples import RUN
from ingero.store.arrays.spans import joined
from ingero.store.call_stacks import CallStack
from ingero.store.records import Process, Window

Array = np.ndarray[Any, np.dtype[Any]]

_LOOKS = re.compile(r"_*(GI_+)?(libc_)?(p?select|p?poll|epoll_p?wait2?|sched_yield)(64|32|_time64|_nocancel)*$")
_WORTH_NS = 20_000_000  # of a gap: two ticks of the sampling clock
_WORTH_A_LOOK = 0.01  # of the window, in such gaps
_LOOKING = 0.1  # of the samples at a line, in such a call: the interpreter's own work around it takes the rest
_MIN_SAMPLES = 5  # in such a call, before a line is said to poll
_MOSTLY = 0.8  # of the samples of a gap, before all of it until the last look is idle


def polled_ns(evidence: Evidence, process: Process, gpu_stream: Array) -> Array:
    """Per interval of a stream, how long its thread looked for work before it had any.

    Nothing where the process trains: then it waits for its workers, however it does that.
    """
    idle = np.zeros(len(gpu_stream))
    gaps = np.flatnonzero(gpu_stream["idle_ns"] - np.maximum(gpu_stream["idle_sleep_ns"], 0) > _WORTH_NS)
    awake_ns = int((gpu_stream["idle_ns"] - np.maximum(gpu_stream["idle_sleep_ns"], 0))[gaps].sum())
    is_worth = awake_ns >= _WORTH_A_LOOK * evidence.window.duration_ns
    if not is_worth or evidence.missing((SAMPLES,)) or data_workers(evidence, process):
        return idle
    begins, ends = (
        gpu_stream["prev_sync_end_ns"][gaps],
        gpu_stream["prev_sync_end_ns"][gaps] + gpu_stream["idle_ns"][gaps],
    )
    windows = joined(Window(begin_ns=a, end_ns=f) for a, f in zip(begins.tolist(), ends.tolist(), strict=True))
    rows = evidence.samples(windows, process.process)
    rows = rows[
        (rows["state"] == RUN)
        & (rows["weight_ns"] > 0)
        & np.isin(rows["tid"], np.unique(gpu_stream["prev_sync_tid"][gaps]))
    ]
    rows = np.sort(rows, order="time_ns")
    polls = _polls(evidence, rows)
    if not polls.any():
        return idle
    firsts, lasts = np.searchsorted(rows["time_ns"], begins), np.searchsorted(rows["time_ns"], ends)
    for gap, begin_ns, first, last in zip(gaps.tolist(), begins.tolist(), firsts.tolist(), lasts.tolist(), strict=True):
        is_mine = rows["tid"][first:last] == gpu_stream["prev_sync_tid"][gap]
        polled = _polled_of(
            rows[first:last][is_mine], polls[first:last][is_mine], begin_ns, int(gpu_stream["idle_ns"][gap])
        )
        idle[gap] = polled
    return idle


def _polled_of(rows: Array, polls: Array, begin_ns: int, length_ns: int) -> int:
    """Of one gap: until the last look for work, where it hardly did anything else; what follows is the answer to it.

    What lies between a look and the next sample is half of either; where none follows, no work was seen.
    """
    if not polls.any():
        return 0
    if polls.mean() < _MOSTLY:
        return min(int(rows["weight_ns"][polls].sum()), length_ns)
    last = int(np.flatnonzero(polls)[-1])
    if last + 1 == len(rows):
        return length_ns
    return int(rows["time_ns"][last] + rows["time_ns"][last + 1]) // 2 - begin_ns


def _polls(evidence: Evidence, rows: Array) -> Array:
    """Which of these samples are of lines at which their thread looks for work."""
    hashes, inverse, counts = np.unique(rows["stack_hash"], return_inverse=True, return_counts=True)
    evidence.stacks.read(hashes.tolist())
    stacks = [evidence.stacks.of(one) for one in hashes.tolist()]
    at, looking = Counter[object](), Counter[object]()
    for stack, count in zip(stacks, counts.tolist(), strict=True):
        at[_place(stack)] += count
        looking[_place(stack)] += count if _looks(stack) else 0
    lines = {one for one, count in looking.items() if one and count >= max(_MIN_SAMPLES, _LOOKING * at[one])}
    is_of_line = np.array([_place(stack) in lines for stack in stacks], bool)
    chosen: Array = is_of_line[inverse] if len(rows) else np.zeros(0, bool)
    return chosen


def _looks(stack: CallStack | None) -> bool:
    """Whether it is in a call that asks whether something has come."""
    return bool(stack and stack.native and _LOOKS.fullmatch(stack.native[0].symbol))


def _place(stack: CallStack | None) -> object:
    """The line of Python; of a thread without any, the native function that its own code begins with."""
    if stack is None:
        return None
    return stack.python[0] if stack.python else stack.native[-1] if stack.native else None
