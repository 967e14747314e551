"""The first steps of a process were slow because contexts, modules and memory were used for the first time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ingero.diagnose.cases.call_growth import CallGrowth, grown_calls, kind_of_op
from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cuda_calls.first_use import FIRST_USE, FirstUse, first_uses
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Finding, FindingKind, Fix, Link, Part, Severity
from ingero.diagnose.incidents.blind_spots import was_traced
from ingero.ops import Kind, Source
from ingero.store.records import Call, Process, Window
from ingero.units import SECOND_NS, format_ns

CAUSE = "cold-start"
FIRST_NS = 10_000_000_000  # of a process's GPU work: contexts, modules, first allocations, autotuning
_MIN_FIRST_SECOND_RATIO = 0.5  # of the rate at which the whole case lost time
_MIN_TIMES_BASELINE = 5  # times the baseline mean: a first use is that slow, and only once
_MIN_SHARE_IN_SLOW_CALLS = 0.5  # of the time that the calls took longer
_MIN_TIMES_OWN_MEAN = 20  # times the mean of the same calls, the slow one included
_MIN_FIRST_USE_NS = 100_000_000  # in slow calls of one layer, before they are reported
_MAX_CALLS = 8  # the longest, per layer
_FIXES = (
    Fix(text="warm up before taking requests", command="CUDA_MODULE_LOADING=EAGER"),
    Fix(text="keep compiled kernels", command="TORCHINDUCTOR_CACHE_DIR=<volume> CUDA_CACHE_PATH=<volume>"),
)
_CLAIMED_STATES = ("run", "sleep", "io", "uninterruptible")
_KIND_BY_TIMES = {"launch_times": Kind.LAUNCH, "allocation_times": Kind.ALLOC}


def explain(case: Case) -> Iterator[Finding]:
    """Lost time at the start of a process seen to start, inside calls that were slow the first time."""
    gpu_stream = case.evidence.gpu_streams[case.process.process]
    first_ns = int(gpu_stream["prev_sync_end_ns"][0])
    is_young = case.process.start_ns >= case.evidence.window.begin_ns - FIRST_NS
    is_first = case.window.begin_ns - first_ns < FIRST_NS // 10 and _lost_from_first_second(case)
    if case.kind is not FindingKind.INCIDENT or not is_young or not is_first or case.window.duration_ns > FIRST_NS:
        return
    grown = grown_calls(case, _comparable_kinds(case))
    if not grown or _in_slow_calls_ns(case, grown) < _MIN_SHARE_IN_SLOW_CALLS * grown.grown_ns:
        return
    claims = case.claimable((Part.IDLE, Part.LAUNCH), _CLAIMED_STATES, grown.grown_ns)
    if not claims:
        return
    lost = sum(claims.values())
    slow = grown.largest
    ratio = slow.mean_ns / slow.baseline_mean_ns if slow.timed and slow.baseline_mean_ns else None
    yield Finding(
        cause=CAUSE,
        resource="first use",
        root=str(case.process.pid),
        summary=f"{case.who} took {format_ns(lost)} longer for its first steps: {grown.text}",
        claims=claims,
        line=case.line_of(slow),
        chain=(
            grown.link(
                text=f"{slow.totals.name} loaded code or made a context the first time it was used",
                structure="the calls' exact sums in the first seconds of the process",
                order="later calls of the same kind are fast",
            ),
        ),
        fixes=_FIXES,
        evidence={"times slower": round(ratio, 1) if ratio else None},
    )


def _in_slow_calls_ns(case: Case, grown: CallGrowth) -> float:
    """How much longer than in the baseline the recorded calls took that were far slower, as first calls are.

    Of thousands of equally slow calls hardly any is recorded.
    """
    total_ns, sources = 0.0, sorted({change.totals.source for change in grown.changes})
    calls = case.evidence.events(case.window, sources, case.process.process)
    for change in grown.changes:
        baseline_ns = change.baseline_mean_ns
        durations = calls["duration_ns"][(calls["source"] == change.totals.source) & (calls["op"] == change.totals.op)]
        total_ns += float(np.sum(durations[durations > _MIN_TIMES_BASELINE * baseline_ns] - baseline_ns))
    return total_ns


def _comparable_kinds(case: Case) -> Kind:
    """Kinds of calls whose durations were also traced in the baseline: others would seem to have become slower."""
    kinds = FIRST_USE
    for name, kind in _KIND_BY_TIMES.items():
        if not was_traced(case, (name,)):
            kinds &= ~kind
    return kinds


def _lost_from_first_second(case: Case) -> bool:
    """Whether the first second lost time at about the rate of the case; otherwise something began later."""
    first = case.sync_intervals["sync_end_ns"] < case.window.begin_ns + SECOND_NS
    begun_ns = float((case.sync_intervals["sync_end_ns"] - case.sync_intervals["prev_sync_end_ns"])[first].sum())
    rate = float(case.excess_ns[first].sum()) / max(begun_ns, 1.0)
    return rate >= _MIN_FIRST_SECOND_RATIO * case.lost_ns / max(case.wall_ns, 1)


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """First calls that were slow before the first sync interval began, or still run: no interval holds their time."""
    for first_use in first_uses(evidence):
        yield _ongoing_finding(evidence, first_use)
    for number, gpu_stream in evidence.gpu_streams.items():
        process = evidence.processes.get(number)
        if process is None or not len(gpu_stream) or process.start_ns < evidence.window.begin_ns - FIRST_NS:
            continue
        before = Window(begin_ns=evidence.window.begin_ns, end_ns=int(gpu_stream["prev_sync_end_ns"][0]))
        if slow := _slow_first_calls(evidence, process, before):
            yield _first_finding(evidence, process, before, slow)


def _ongoing_finding(evidence: Evidence, first_use: FirstUse) -> Finding:
    """A first call in progress: no fault yet, reported so that nobody takes it for a hang, and over when it returns."""
    length_ns, name = first_use.seen_ns - first_use.since_ns, evidence.processes[first_use.process].name
    return Finding(
        cause=CAUSE,
        resource="first use",
        root=str(first_use.pid),
        kind=FindingKind.EVENT,
        severity=Severity.LOW,
        window=Window(begin_ns=first_use.since_ns, end_ns=first_use.seen_ns + 1),
        process=first_use.process,
        summary=f"{name} [{first_use.pid}] has been loading or compiling code for {format_ns(length_ns)}, inside "
        f"{first_use.name}, "
        f"before its first step: it is working, not hung",
        line=first_use.line,
        chain=(
            Link(
                text=f"its thread was on a CPU, or waited for one, for {format_ns(first_use.awake_ns)} of that",
                seen_ns=first_use.awake_ns,
                structure="thread-state time while the call was in flight, or samples inside the driver",
                order="no step has ended before",
            ),
        ),
        fixes=_FIXES,
        evidence={"open (ns)": length_ns, "awake (ns)": first_use.awake_ns, "inside": first_use.name},
    )


def _slow_first_calls(evidence: Evidence, process: Process, before: Window) -> list[Call]:
    """The longest calls of one layer (runtime or driver), where they took far longer than the mean of the same "
    "calls."""
    everything = evidence.ops((evidence.window,), process.process)
    means = {(totals.source, totals.op): totals.sum_ns / max(totals.count, 1) for totals in everything}
    for source in (Source.CUDA, Source.DRIVER):
        calls = evidence.reader.worst_calls(before, process=process.process, source=source, limit=_MAX_CALLS)
        slow = [
            call
            for call in calls
            if kind_of_op(call.source, call.op) & FIRST_USE
            and call.duration_ns > _MIN_TIMES_OWN_MEAN * means.get((call.source, call.op), call.duration_ns)
        ]
        if sum(call.duration_ns for call in slow) >= _MIN_FIRST_USE_NS:
            return slow
    return []


def _first_finding(evidence: Evidence, process: Process, before: Window, slow: Sequence[Call]) -> Finding:
    first, total_ns = slow[0], sum(call.duration_ns for call in slow)
    times = f"{len(slow)} first calls" if len(slow) > 1 else "its first call"
    return Finding(
        cause=CAUSE,
        resource="first use",
        root=str(process.pid),
        kind=FindingKind.EVENT,
        severity=Severity.LOW,
        window=Window(begin_ns=min(call.start_ns for call in slow), end_ns=before.end_ns),
        process=process.process,
        summary=f"{process.name} [{process.pid}] spent {format_ns(total_ns)} in {times} before its first step, most of "
        f"it in {first.name}",
        line=evidence.call_line(before, process.process, first.source, first.op),
        chain=(
            Link(
                text=f"{first.name} loaded code or made a context the first time it was used",
                seen_ns=total_ns,
                structure="recorded calls of a process that was seen to begin",
                order="later calls of the same kind are fast",
            ),
        ),
        fixes=_FIXES,
        evidence={"first calls (ns)": total_ns, "slowest": first.name},
    )


RULE = Rule(
    cause=CAUSE,
    title="slow first calls: contexts, modules, memory",
    order=46,
    needs=("sync_intervals", "op_stats", "events"),
    improves_with=("launch_times", "allocation_times"),
    shows="the first calls of a process that began while it was recorded, against its later ones; while a first call "
    "lasts, how long it has, and how much of that its thread was on a CPU",
    limits="a process that ran before the recording began has no first steps in it; half of the time must lie in "
    "recorded calls of at least five times the baseline duration",
    explain=explain,
    covers_agent_start=True,
    find_events=find_events,
)
