"""What a process that waits for others is: a trainer with data workers, a client, or neither as far as can be seen."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.offcpu.critical_path import Segment
from ingero.diagnose.samples.stack_samples import SLEEP, asks_another, matching, runs_program, spans_of, stays
from ingero.store.records import Process, Window

_DATA_WORKER = re.compile(r"pt_data_worker")  # the name that PyTorch gives them
_CLEAR = 0.7  # of the sleeping samples


def is_asking(evidence: Evidence, process: Process, waits: Iterable[Segment]) -> bool:
    """Whether these waits for a process outside its own tree are for answers, not for somebody's next question."""
    return bool(data_workers(evidence, process)) or _is_client(evidence, process, waits)


def data_workers(evidence: Evidence, process: Process) -> list[Process]:
    """Its own that are seen: then it trains, and nobody asks it for anything."""
    pids = evidence.family(process.process) - {process.pid}
    mine = (evidence.process_at(pid) for pid in sorted(pids))
    return [one for one in mine if one and _DATA_WORKER.match(evidence.thread_names.get(one.pid, ""))]


def at_once(workers: Iterable[Process], window: Window) -> int:
    """The most of these that were there at a time: a loader starts new ones for each pass over its data."""
    lives = [(max(one.start_ns, window.begin_ns), min(one.exit_ns or window.end_ns, window.end_ns)) for one in workers]
    return max((sum(begin <= at < end for begin, end in lives) for at, last in lives if at < last), default=0)


def _is_client(evidence: Evidence, process: Process, waits: Iterable[Segment]) -> bool:
    """Whether its stacks in these waits are of one that has asked, or run a program, and waits for what comes of it."""
    found = stays(evidence, process.process, (evidence.window,), spans_of(waits), SLEEP)
    return matching(found, lambda stack: asks_another(stack) or runs_program(stack)) >= _CLEAR
