"""The role of a process that waits for others: a trainer, a client, or neither."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.samples import stack_samples
from ingero.diagnose.samples.stack_samples import (
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
from ingero.store.records import Process, Window

_DATA_WORKER = re.compile(r"pt_data_worker")  # the name that PyTorch gives its data workers
_TRAINING_KERNEL = re.compile(r"backward|bwd|[dw]grad|grad_input|multi_tensor_apply|adam|sgd|lamb", re.IGNORECASE)
_MIN_SHARE = 0.7  # of the samples of its sleep, before a process counts as a client, or as waiting for requests


def is_waiting_for_answer(evidence: Evidence, process: Process, waits: Iterable[PathSegment]) -> bool:
    """Whether these waits for a process outside its own tree are for answers, not for the next request.

    A process that trains wants nothing but to go on, except in an event loop or at a person's prompt.
    """
    groups = group_samples(evidence, process.process, (evidence.window,), spans_of(waits), SLEEP)
    if matching_share(groups, lambda stack: asks_another(stack) or runs_program(stack)) >= _MIN_SHARE:
        return True
    return trains(evidence, process) and matching_share(groups, waits_for_requests) < _MIN_SHARE


def trains(evidence: Evidence, process: Process) -> bool:
    """Whether a process trains, so that a GPU without work is always lost time.

    It has data workers or PyTorch's threads for backward passes, launches kernels of those or of optimizers, or was
    seen in one.
    """
    known = evidence.trains.get(process.process)
    if known is None:
        known = evidence.trains[process.process] = _trains(evidence, process)
    return known


def _trains(evidence: Evidence, process: Process) -> bool:
    mine = [tid for tid, (number, _) in evidence.threads.items() if number == process.process]
    if data_workers(evidence, process) or any(is_autograd(evidence.thread_names.get(tid, "")) for tid in mine):
        return True
    if evidence.reader.is_recorded("raw_kernel_launches"):
        launched = evidence.reader.kernel_launches(evidence.window, process=process.process)
        if any(_TRAINING_KERNEL.search(kernel.name) for kernel in launched):
            return True
    seen: list[SampleGroup] = group_samples(evidence, process.process, (evidence.window,), None, RUN)
    return any(stack_samples.trains(group.stack) for group in seen)


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
