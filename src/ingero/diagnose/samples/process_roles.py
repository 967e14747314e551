"""The role of a process that waits for others: a trainer with data workers, a client, or neither."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.samples.stack_samples import (
    SLEEP,
    asks_another,
    group_samples,
    matching_share,
    runs_program,
    spans_of,
)
from ingero.store.records import Process, Window

_DATA_WORKER = re.compile(r"pt_data_worker")  # the name that PyTorch gives its data workers
_MIN_CLIENT_SHARE = 0.7  # of the samples of its sleep, before a process counts as a client


def is_waiting_for_answer(evidence: Evidence, process: Process, waits: Iterable[PathSegment]) -> bool:
    """Whether these waits for a process outside its own tree are for answers, not for the next request."""
    return bool(data_workers(evidence, process)) or _is_client(evidence, process, waits)


def data_workers(evidence: Evidence, process: Process) -> list[Process]:
    """The traced data workers of a process: with any, the process trains and serves no requests."""
    pids = evidence.family(process.process) - {process.pid}
    workers = (evidence.process_at(pid) for pid in sorted(pids))
    names = evidence.thread_names  # of a process that lived for less than a second only its own name may be known
    return [one for one in workers if one and _DATA_WORKER.match(names.get(one.pid) or one.name)]


def max_concurrent(workers: Iterable[Process], window: Window) -> int:
    """The most workers alive at a time; a loader starts new workers for each pass over its data."""
    lives = [(max(one.start_ns, window.begin_ns), min(one.exit_ns or window.end_ns, window.end_ns)) for one in workers]
    return max((sum(begin <= at < end for begin, end in lives) for at, last in lives if at < last), default=0)


def _is_client(evidence: Evidence, process: Process, waits: Iterable[PathSegment]) -> bool:
    """Whether its stacks in these waits are of a client that waits for an answer, or for a program that it runs."""
    groups = group_samples(evidence, process.process, (evidence.window,), spans_of(waits), SLEEP)
    return matching_share(groups, lambda stack: asks_another(stack) or runs_program(stack)) >= _MIN_CLIENT_SHARE
