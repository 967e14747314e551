"""Which verdict each process of a recording gets, and the time that it is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ingero.diagnose.cases.call_growth import kind_of_op
from ingero.diagnose.causes.gpu.gpu_overlap import shared_with
from ingero.diagnose.causes.legacy.call_gaps import GPU_SOURCES, NO_STATE
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.nvml_utilization import utilization_of
from ingero.diagnose.evidence.recorded import ENQUEUES, LAUNCHES, SYNC_INTERVALS
from ingero.diagnose.findings import Incident, ProcessVerdict
from ingero.diagnose.incidents.verdicts import step_verdict, verdict, without_steps, without_syncs
from ingero.diagnose.profile.verdict import profile_verdicts
from ingero.diagnose.steps.gpu_idle import gpu_idle
from ingero.ops import Kind
from ingero.store.records import OpShare, Process, Window
from ingero.units import format_ns

Array = np.ndarray[Any, np.dtype[Any]]

_LEFT_RATIO = 0.05  # of its life that a process spent in no step, before that is said


def process_verdicts(evidence: Evidence, incidents: Iterable[Incident]) -> Iterator[ProcessVerdict]:
    """One sentence per process that works with a GPU: by its steps, its sync intervals, or that it has neither."""
    for found in _verdicts(evidence, tuple(incidents)):
        steps, process = evidence.steps.get(found.process), evidence.processes.get(found.process)
        idle = gpu_idle(evidence, process) if process and found.process in evidence.main_streams else None
        how, count = (steps.how, steps.count) if steps else (None, 0)
        job = evidence.job_of(found.pid, process.cgroup_id if process else None)
        rank = process.rank if process else found.rank
        yield replace(found, how=how, steps=count, gpu_idle=idle, job=job, rank=rank)


def _verdicts(evidence: Evidence, incidents: Sequence[Incident]) -> Iterator[ProcessVerdict]:
    if not evidence.reader.is_recorded("raw_sync_intervals"):
        yield from _older_verdicts(evidence, {incident.root for incident in incidents})
    hit = {affected.process for incident in incidents for affected in incident.affected}
    yield from profile_verdicts(evidence.profiles, hit)
    for number, gpu_stream in evidence.gpu_streams.items():
        process = evidence.processes.get(number)
        if process is not None and len(gpu_stream):
            text = _followed(
                evidence, process, gpu_stream, _text(evidence, process, gpu_stream, has_incident=number in hit)
            )
            yield ProcessVerdict(
                process=number, pid=process.pid, name=process.name, text=text, has_incident=number in hit
            )
    yield from _without_steps(evidence, hit)


def _older_verdicts(evidence: Evidence, hit: set[str]) -> Iterator[ProcessVerdict]:
    """Of processes with GPU calls in a recording without sync intervals."""
    calls = {int(one["process"]) for one in evidence.events(evidence.window, GPU_SOURCES)}
    for number in sorted(calls & evidence.processes.keys()):
        process = evidence.processes[number]
        is_hit = str(process.pid) in hit
        text = "see incidents above" if is_hit else f"no host-side cause was found; {NO_STATE}"
        yield ProcessVerdict(process=number, pid=process.pid, name=process.name, text=text, has_incident=is_hit)


def _text(evidence: Evidence, process: Process, gpu_stream: Array, *, has_incident: bool) -> str:
    main = evidence.main_streams[process.process]
    followed = Window(begin_ns=int(gpu_stream["prev_sync_end_ns"].min()), end_ns=int(gpu_stream["sync_end_ns"].max()))
    utilization = utilization_of(evidence, process, main.device, (followed,))
    if main.is_steps:
        text = step_verdict(
            main.sync_intervals,
            gpu_idle(evidence, process),
            has_incident=has_incident,
            utilization=utilization,
            by_waits=evidence.leads(process.process).pace(main.sync_intervals),
        )
    else:
        text = verdict(gpu_stream, has_incident=has_incident, utilization=utilization)
    shared = shared_with(evidence, process, gpu_stream)
    return f"{text}; {shared}" if shared else text


def _lived(evidence: Evidence, process: Process) -> Window:
    """The part of the window in which a process was there."""
    window = evidence.window
    end_ns = min(window.end_ns, process.exit_ns or window.end_ns)
    return Window(begin_ns=max(window.begin_ns, process.start_ns), end_ns=end_ns)


def _followed(evidence: Evidence, process: Process, gpu_stream: Array, text: str) -> str:
    """A verdict with the time that it is about, and for how long nothing can be said of a process's steps.

    Where not everything was traced, that is also the time that belongs to none: what was seen of the first seconds is
    no verdict about the others.
    """
    lived = _lived(evidence, process)
    is_of_steps = evidence.main_streams[process.process].is_steps  # which go on while sync intervals cannot be compared
    gap_ns = 0 if is_of_steps else evidence.gaps.missing_ns((SYNC_INTERVALS,), (lived,))
    unseen_ns = evidence.gaps.missing_ns((ENQUEUES,), (lived,))
    left_ns = min(
        unseen_ns, lived.duration_ns - int((gpu_stream["sync_end_ns"] - gpu_stream["prev_sync_end_ns"]).sum())
    )
    if left_ns > _LEFT_RATIO * lived.duration_ns:
        gap_ns = max(gap_ns, left_ns)
    if not gap_ns:
        return text
    said = text if 2 * gap_ns < lived.duration_ns else f"in {format_ns(lived.duration_ns - gap_ns)}: {text}"
    return f"{said}; not checked for {format_ns(gap_ns)}, in which its steps could not be followed"


def _count(calls: Iterable[OpShare], kind: Kind) -> float:
    return sum(one.count for one in calls if kind_of_op(one.source, one.op) & kind)


def _without_steps(evidence: Evidence, hit: set[int]) -> Iterator[ProcessVerdict]:
    """Of processes that launch, and have neither steps nor waits that end one."""
    if not evidence.reader.is_recorded("raw_op_stats") or evidence.missing((SYNC_INTERVALS,)):
        return
    synced = {gpu_stream.process for gpu_stream in evidence.synced_streams}  # streams that do not pace it
    profiled = {report.process.process for report in evidence.profiles.reports}
    for number, process in evidence.processes.items():
        is_told = number in evidence.gpu_streams or number in evidence.waiting or number in profiled
        if not process.is_traced or is_told:
            continue
        calls, lived = evidence.ops((evidence.window,), number), _lived(evidence, process)
        launches = round(_count(calls, Kind.LAUNCH))
        syncs = round(_count(calls, Kind.SYNC))
        is_unseen = 2 * evidence.gaps.missing_ns((LAUNCHES,), (lived,)) > lived.duration_ns
        if (launches or (is_unseen and calls)) and (not syncs or number in synced):
            text = without_syncs() if is_unseen else without_steps(launches, syncs=syncs)
            yield ProcessVerdict(
                process=number, pid=process.pid, name=process.name, text=text, has_incident=number in hit
            )
