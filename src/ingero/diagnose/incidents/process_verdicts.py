"""The verdict on each process of a recording, with the time that it covers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ingero.diagnose.cases.call_growth import kind_of_op
from ingero.diagnose.causes.gpu.gpu_overlap import gpu_sharing_text
from ingero.diagnose.causes.legacy.call_gaps import GPU_SOURCES, NO_STATE
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.nvml_utilization import utilization_of
from ingero.diagnose.evidence.recorded import ENQUEUES, LAUNCHES, SYNC_INTERVALS
from ingero.diagnose.findings import Incident, ProcessVerdict
from ingero.diagnose.incidents.verdicts import no_step_verdict, no_sync_verdict, step_verdict, verdict
from ingero.diagnose.profile.verdict import profile_verdicts
from ingero.diagnose.steps.gpu_idle import gpu_idle
from ingero.ops import Kind
from ingero.store.records import OpShare, Process, Window
from ingero.units import format_ns

Array = np.ndarray[Any, np.dtype[Any]]

_MIN_OUTSIDE_STEPS_RATIO = 0.05  # of a process's lifetime outside steps, from which on the verdict says so


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
    with_incidents = {affected.process for incident in incidents for affected in incident.affected}
    yield from profile_verdicts(evidence.profiles, with_incidents)
    for number, gpu_stream in evidence.gpu_streams.items():
        process = evidence.processes.get(number)
        if process is not None and len(gpu_stream):
            text = _with_coverage(
                evidence,
                process,
                gpu_stream,
                _text(evidence, process, gpu_stream, has_incident=number in with_incidents),
            )
            yield ProcessVerdict(
                process=number, pid=process.pid, name=process.name, text=text, has_incident=number in with_incidents
            )
    yield from _without_steps(evidence, with_incidents)


def _older_verdicts(evidence: Evidence, with_incidents: set[str]) -> Iterator[ProcessVerdict]:
    """Verdicts on processes with GPU calls, of a recording without sync intervals."""
    calls = {int(event["process"]) for event in evidence.events(evidence.window, GPU_SOURCES)}
    for number in sorted(calls & evidence.processes.keys()):
        process = evidence.processes[number]
        is_hit = str(process.pid) in with_incidents
        text = "see incidents above" if is_hit else f"no host-side cause was found; {NO_STATE}"
        yield ProcessVerdict(process=number, pid=process.pid, name=process.name, text=text, has_incident=is_hit)


def _text(evidence: Evidence, process: Process, gpu_stream: Array, *, has_incident: bool) -> str:
    main = evidence.main_streams[process.process]
    covered = Window(begin_ns=int(gpu_stream["prev_sync_end_ns"].min()), end_ns=int(gpu_stream["sync_end_ns"].max()))
    utilization = utilization_of(evidence, process, main.device, (covered,))
    if main.is_steps:
        text = step_verdict(
            main.sync_intervals,
            gpu_idle(evidence, process),
            has_incident=has_incident,
            utilization=utilization,
            by_waits=evidence.host_leads(process.process).pace(main.sync_intervals),
        )
    else:
        text = verdict(gpu_stream, has_incident=has_incident, utilization=utilization)
    shared = gpu_sharing_text(evidence, process, gpu_stream)
    return f"{text}; {shared}" if shared else text


def _lifetime(evidence: Evidence, process: Process) -> Window:
    """The part of the window in which a process existed."""
    window = evidence.window
    end_ns = min(window.end_ns, process.exit_ns or window.end_ns)
    return Window(begin_ns=max(window.begin_ns, process.start_ns), end_ns=end_ns)


def _with_coverage(evidence: Evidence, process: Process, gpu_stream: Array, text: str) -> str:
    """A verdict's text with the time that it covers, and for how long a process's steps could not be followed.

    Where not everything was traced, time outside steps counts as not followed, too: a verdict on the first seconds
    is none on the others.
    """
    lifetime = _lifetime(evidence, process)
    is_of_steps = evidence.main_streams[process.process].is_steps  # which go on while sync intervals cannot be compared
    gap_ns = 0 if is_of_steps else evidence.gaps.missing_ns((SYNC_INTERVALS,), (lifetime,))
    unseen_ns = evidence.gaps.missing_ns((ENQUEUES,), (lifetime,))
    outside_ns = min(
        unseen_ns, lifetime.duration_ns - int((gpu_stream["sync_end_ns"] - gpu_stream["prev_sync_end_ns"]).sum())
    )
    if outside_ns > _MIN_OUTSIDE_STEPS_RATIO * lifetime.duration_ns:
        gap_ns = max(gap_ns, outside_ns)
    if not gap_ns:
        return text
    covered_text = (
        text if 2 * gap_ns < lifetime.duration_ns else f"in {format_ns(lifetime.duration_ns - gap_ns)}: {text}"
    )
    return f"{covered_text}; not checked for {format_ns(gap_ns)}, in which its steps could not be followed"


def _count(calls: Iterable[OpShare], kind: Kind) -> float:
    return sum(call.count for call in calls if kind_of_op(call.source, call.op) & kind)


def _without_steps(evidence: Evidence, with_incidents: set[int]) -> Iterator[ProcessVerdict]:
    """Verdicts on processes that launch work but have neither steps nor waits that end one."""
    if not evidence.reader.is_recorded("raw_op_stats") or evidence.why_unavailable((SYNC_INTERVALS,)):
        return
    synced = {gpu_stream.process for gpu_stream in evidence.synced_streams}  # streams that do not pace it
    profiled = {report.process.process for report in evidence.profiles.reports}
    for number, process in evidence.processes.items():
        is_reported = number in evidence.gpu_streams or number in evidence.longest_in_flight or number in profiled
        if not process.is_traced or is_reported:
            continue
        calls, lifetime = evidence.ops((evidence.window,), number), _lifetime(evidence, process)
        launches = round(_count(calls, Kind.LAUNCH))
        syncs = round(_count(calls, Kind.SYNC))
        has_untraced_launches = 2 * evidence.gaps.missing_ns((LAUNCHES,), (lifetime,)) > lifetime.duration_ns
        if (launches or (has_untraced_launches and calls)) and (not syncs or number in synced):
            text = no_sync_verdict() if has_untraced_launches else no_step_verdict(launches, syncs=syncs)
            yield ProcessVerdict(
                process=number, pid=process.pid, name=process.name, text=text, has_incident=number in with_incidents
            )
