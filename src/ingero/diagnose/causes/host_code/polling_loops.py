"""Loops that poll for work without sleeping: always on a CPU, although there is no request.

A server may poll its sockets with a timeout of zero, repeatedly, or memory that it shares with the process that gives
it work. Its samples tell this from computing: part of them are in the system calls that poll, or yield the CPU. While
its parent computes, there is a request.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.recorded import SAMPLES
from ingero.diagnose.samples.process_roles import data_workers
from ingero.diagnose.samples.stack_samples import RUN, SampleGroup
from ingero.store.arrays.arrays import SAMPLE_DTYPE
from ingero.store.arrays.spans import joined
from ingero.store.call_stacks import CallStack
from ingero.store.records import Process, Window

Array = np.ndarray[Any, np.dtype[Any]]

_POLLING_CALLS = re.compile(r"_*(GI_+)?(libc_)?(p?select|p?poll|epoll_p?wait2?|sched_yield)(64|32|_time64|_nocancel)*$")
_NO_SAMPLES = np.zeros(0, SAMPLE_DTYPE)
MIN_PARENT_SHARE = 0.5  # of the time polled, in which the parent computed: then there was a request
_MIN_GAP_NS = 20_000_000  # of a gap: two ticks of the sampling clock
_MIN_GAPS_RATIO = 0.01  # of the window, in such gaps
_MIN_POLLING_RATIO = 0.1  # of the samples at a line, in such a call: the interpreter's own work takes the rest
_MIN_LOOP_RATIO = 0.5  # of the samples in a function, in such a call, before all of it polls
_MIN_SAMPLES = 5  # in such a call, before a line is said to poll
_MIN_POLLING_SHARE_OF_GAP = 0.8  # of the samples of a gap, before all of it until the last poll counts as idle


def polled_ns(evidence: Evidence, process: Process, gpu_stream: Array) -> Array:
    """How long the thread of each sync interval polled for work before it had any, ns.

    Zero for a process with data workers: it waits for them, in whatever way. Zero, too, while its parent computed.
    """
    idle = np.zeros(len(gpu_stream))
    gaps = np.flatnonzero(gpu_stream["idle_ns"] - np.maximum(gpu_stream["idle_sleep_ns"], 0) > _MIN_GAP_NS)
    awake_ns = int((gpu_stream["idle_ns"] - np.maximum(gpu_stream["idle_sleep_ns"], 0))[gaps].sum())
    is_worth = awake_ns >= _MIN_GAPS_RATIO * evidence.window.duration_ns
    if not is_worth or evidence.why_unavailable((SAMPLES,)) or data_workers(evidence, process):
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
    polls = _polling_mask(evidence, rows)
    if not polls.any():
        return idle
    firsts, lasts = np.searchsorted(rows["time_ns"], begins), np.searchsorted(rows["time_ns"], ends)
    parent = _ParentAtWork(evidence, process)
    for gap, begin_ns, first, last in zip(gaps.tolist(), begins.tolist(), firsts.tolist(), lasts.tolist(), strict=True):
        is_of_thread = rows["tid"][first:last] == gpu_stream["prev_sync_tid"][gap]
        polled = _polled_in_gap_ns(
            rows[first:last][is_of_thread], polls[first:last][is_of_thread], begin_ns, int(gpu_stream["idle_ns"][gap])
        )
        idle[gap] = 0 if polled and parent.share(begin_ns, begin_ns + polled) >= MIN_PARENT_SHARE else polled
    return idle


def parent_of(evidence: Evidence, process: Process) -> Process | None:
    """The traced parent of a process without a GPU stream of its own, which may give it work; None: there is none."""
    parent = evidence.process_at(process.parent_pid or 0)
    is_giver = parent and parent.is_traced and parent.process not in {process.process, *evidence.gpu_streams}
    return parent if is_giver else None


class _ParentAtWork:
    """The samples of a process's parent at which it computed."""

    def __init__(self, evidence: Evidence, process: Process) -> None:
        parent = parent_of(evidence, process)
        rows = evidence.samples((evidence.window,), parent.process) if parent else _NO_SAMPLES
        rows = np.sort(rows[rows["state"] == RUN], order="time_ns")
        rows = rows[~_polling_mask(evidence, rows)] if len(rows) else rows
        self._times, self._sums = rows["time_ns"], np.concatenate(([0], np.cumsum(rows["weight_ns"])))

    def share(self, begin_ns: int, end_ns: int) -> float:
        """The share of a time range in which it computed, 0 to 1."""
        first, last = np.searchsorted(self._times, (begin_ns, end_ns)).tolist()
        return min(float(self._sums[last] - self._sums[first]) / max(end_ns - begin_ns, 1), 1.0)


def polling_groups(groups: Sequence[SampleGroup]) -> list[SampleGroup]:
    """The groups in functions in which their threads hardly do anything but poll: a loop has several lines."""
    loops = _polling_functions((group.stack, group.count) for group in groups)
    return [group for group in groups if _function(group.stack) in loops]


def _polling_functions(seen: Iterable[tuple[CallStack | None, int]]) -> set[object]:
    counts, polling = Counter[object](), Counter[object]()
    for stack, count in seen:
        counts[_function(stack)] += count
        polling[_function(stack)] += count if _is_polling(stack) else 0
    return {one for one, count in polling.items() if one and count >= max(_MIN_SAMPLES, _MIN_LOOP_RATIO * counts[one])}


def _polled_in_gap_ns(rows: Array, polls: Array, begin_ns: int, length_ns: int) -> int:
    """How much of one gap was polling: everything until its last poll, if it hardly did anything else.

    What follows is the answer to that poll. The time between a poll and the next sample counts half to each; where no
    sample follows, no work was seen.
    """
    if not polls.any():
        return 0
    if polls.mean() < _MIN_POLLING_SHARE_OF_GAP:
        return min(int(rows["weight_ns"][polls].sum()), length_ns)
    last = int(np.flatnonzero(polls)[-1])
    if last + 1 == len(rows):
        return length_ns
    return int(rows["time_ns"][last] + rows["time_ns"][last + 1]) // 2 - begin_ns


def _polling_mask(evidence: Evidence, rows: Array) -> Array:
    """Which of these samples are at lines, or in functions, in which their thread polls for work."""
    hashes, inverse, counts = np.unique(rows["stack_hash"], return_inverse=True, return_counts=True)
    evidence.stacks.read(hashes.tolist())
    stacks = [evidence.stacks.of(stack_hash) for stack_hash in hashes.tolist()]
    count_by_place, polling_by_place = Counter[object](), Counter[object]()
    for stack, count in zip(stacks, counts.tolist(), strict=True):
        count_by_place[_place(stack)] += count
        polling_by_place[_place(stack)] += count if _is_polling(stack) else 0
    lines = {
        line
        for line, count in polling_by_place.items()
        if line and count >= max(_MIN_SAMPLES, _MIN_POLLING_RATIO * count_by_place[line])
    }
    loops = _polling_functions(zip(stacks, counts.tolist(), strict=True))
    is_of_line = np.array([_place(stack) in lines or _function(stack) in loops for stack in stacks], bool)
    chosen: Array = is_of_line[inverse] if len(rows) else np.zeros(0, bool)
    return chosen


def _is_polling(stack: CallStack | None) -> bool:
    """Whether a stack is in a system call that polls."""
    return bool(stack and stack.native and _POLLING_CALLS.fullmatch(stack.native[0].symbol))


def _function(stack: CallStack | None) -> object:
    """A stack's Python function; without one, its place."""
    return (stack.python[0].file, stack.python[0].function) if stack and stack.python else _place(stack)


def _place(stack: CallStack | None) -> object:
    """A stack's Python line; without one, the native function that its own code begins with."""
    if stack is None:
        return None
    return stack.python[0] if stack.python else stack.native[-1] if stack.native else None
