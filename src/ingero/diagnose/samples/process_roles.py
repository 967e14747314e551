"""The role of a process that waits for others: a trainer, a client, or neither."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.samples import stack_samples
from ingero.diagnose.samples.stack_samples import (
    MIN_SAMPLES,
    RUN,
    SLEEP,
    SampleGroup,
    asks_another,
    group_samples,
    matching_share,
    runs_program,
    spans_of,
    waits_for_requests,
)
from ingero.diagnose.steps.launching_threads import is_autograd
from ingero.events import WAITS_FOR_EVENTS
from ingero.store.records import Process, Window

_DATA_WORKER = re.compile(r"pt_data_worker")  # the name that PyTorch gives its data workers
# Kernels of backward passes and optimizers, by their names without template arguments.
_TRAINING_KERNEL = re.compile(
    r"[Bb]ackward|(?<![a-z])bwd|wgrad|grad_input|multi_tensor_apply|[Ff]used_?[Aa]dam|lamb_stage"
)
_MIN_WAITS = 10  # sync intervals with a wait, before they are known to recur
_MAX_INTERVALS_APART = 10.0  # a step may have several; between two jobs there are many steps
_MIN_SHARE = 0.7  # of the samples of its sleep, before a process counts as a client, or as waiting for requests


def is_waiting_for_answer(evidence: Evidence, process: Process, waits: Iterable[PathSegment]) -> bool:
    """Whether these waits for a process outside its own tree are for answers, not for the next request.

    A process that trains wants nothing but to go on, except where it waits for events (epoll), in an event loop, or at
    a person's prompt: so does one that has trained and was not asked to go on, as in a notebook. What it asks for it
    needs again and again: a wait after many steps may be for the next job.
    """
    if data_workers(evidence, process):
        return True
    waits = list(waits)
    spans = spans_of(waits)
    groups = group_samples(evidence, process.process, (evidence.window,), spans, SLEEP)
    if matching_share(groups, lambda stack: asks_another(stack) or runs_program(stack)) >= _MIN_SHARE:
        return True
    for_events_ns = sum(wait.duration_ns for wait in waits if wait.call == WAITS_FOR_EVENTS)
    if 2 * for_events_ns >= sum(wait.duration_ns for wait in waits) or not trains(evidence, process):
        return False
    if not _recur(evidence, process, waits):
        return False
    asleep = _asleep(evidence, process, waits)
    return bool(asleep) and matching_share(asleep, waits_for_requests) <= 1 - _MIN_SHARE


def _recur(evidence: Evidence, process: Process, waits: Sequence[PathSegment]) -> bool:
    """Whether the sync intervals with these waits follow each other closely."""
    ends = evidence.gpu_streams[process.process]["sync_end_ns"]
    intervals = np.unique(np.searchsorted(ends, [wait.end_ns for wait in waits]))
    return len(intervals) >= _MIN_WAITS and float(np.median(np.diff(intervals))) <= _MAX_INTERVALS_APART


def _asleep(evidence: Evidence, process: Process, waits: Sequence[PathSegment]) -> list[SampleGroup]:
    """Where the threads of the process's steps slept meanwhile, as far as their Python frames are known."""
    threads = np.unique(evidence.gpu_streams[process.process]["prev_sync_tid"]).tolist()
    meanwhile = [(wait.begin_ns, wait.end_ns) for wait in waits]
    groups = group_samples(evidence, process.process, (evidence.window,), dict.fromkeys(threads, meanwhile), SLEEP)
    return [group for group in groups if group.stack and group.stack.python]


def trains(evidence: Evidence, process: Process) -> bool:
    """Whether a process trains, so that a GPU without work is always lost time.

    It has data workers or PyTorch's threads for backward passes, launches kernels of those or of optimizers, or was
    seen in one.
    """
    if process.process not in evidence.trainers and _trains(evidence, process):
        evidence.trainers.add(process.process)
    return process.process in evidence.trainers


def _trains(evidence: Evidence, process: Process) -> bool:
    mine = [tid for tid, (number, _) in evidence.threads.items() if number == process.process]
    if data_workers(evidence, process) or any(is_autograd(evidence.thread_names.get(tid, "")) for tid in mine):
        return True
    if evidence.reader.is_recorded("raw_kernel_launches"):
        launched = evidence.reader.kernel_launches(evidence.window, process=process.process)
        if any(_TRAINING_KERNEL.search(kernel.short_name) for kernel in launched):
            return True
    seen = group_samples(evidence, process.process, (evidence.window,), None, RUN)
    return sum(group.count for group in seen if stack_samples.trains(group.stack)) >= MIN_SAMPLES


def data_workers(evidence: Evidence, process: Process) -> list[Process]:
    """The traced data workers of a process."""
    pids = evidence.family(process.process) - {process.pid}
    workers = (evidence.process_at(pid) for pid in sorted(pids))
    names = evidence.thread_names  # of a process that lived for less than a second only its own name may be known
    return [one for one in workers if one and _DATA_WORKER.match(names.get(one.pid) or one.name)]


def max_concurrent(workers: Iterable[Process], window: Window) -> int:
    """The most workers alive at a time; a loader starts new workers for each pass over its data."""
    lives = [(max(one.start_ns, window.begin_ns), min(one.exit_ns or window.end_ns, window.end_ns)) for one in workers]
    return max((sum(begin <= at < end for begin, end in lives) for at, last in lives if at < last), default=0)
