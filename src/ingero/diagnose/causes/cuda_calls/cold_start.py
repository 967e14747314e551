"""The first steps of a process were slow because everything was used for the first time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ingero.diagnose.cases.call_growth import Growth, growth, kind_of_op
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
_AT_ONCE = 0.5
_BEYOND = 5  # times the usual mean: a first use is that slow, and only once
_MOSTLY = 0.5  # of what the calls took longer
_FAR_BEYOND = 20  # times the mean of the same calls, the slow one included
_WORTH_NS = 100_000_000
_MOST_CALLS = 8
_FIXES = (
    Fix(text="warm up before taking requests", command="CUDA_MODULE_LOADING=EAGER"),
    Fix(text="keep compiled kernels", command="TORCHINDUCTOR_CACHE_DIR=<volume> CUDA_CACHE_PATH=<volume>"),
)
_INSIDE = ("run", "sleep", "io", "uninterruptible")
_TIMES = {"launch_times": Kind.LAUNCH, "allocation_times": Kind.ALLOC}


def find(case: Case) -> Iterator[Finding]:
    """Lost time at the begin of a process that was seen to begin, inside calls that were slow the first time."""
    gpu_stream = case.evidence.gpu_streams[case.process.process]
    first_ns = int(gpu_stream["prev_sync_end_ns"][0])
    is_young = case.process.start_ns >= case.evidence.window.begin_ns - FIRST_NS
    is_first = case.window.begin_ns - first_ns < FIRST_NS // 10 and _was_there_at_once(case)
    if case.kind is not FindingKind.INCIDENT or not is_young or not is_first or case.window.duration_ns > FIRST_NS:
        return
    grown = growth(case, _comparable(case))
    if not grown or _in_slow_calls_ns(case, grown) < _MOSTLY * grown.grown_ns:
        return
    claims = case.take((Part.IDLE, Part.LAUNCH), _INSIDE, grown.grown_ns)
    if not claims:
        return
    lost = sum(claims.values())
    slow = grown.largest
    ratio = slow.mean_ns / slow.usual_mean_ns if slow.timed and slow.usual_mean_ns else None
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


def _in_slow_calls_ns(case: Case, grown: Growth) -> float:
    """What recorded calls far beyond the usual, as first ones are, took longer than that.

    Of thousands that are slow alike hardly any is recorded.
    """
    found, sources = 0.0, sorted({one.totals.source for one in grown.changes})
    calls = case.evidence.events(case.window, sources, case.process.process)
    for one in grown.changes:
        usual_ns = one.usual_mean_ns
        mine = calls["duration_ns"][(calls["source"] == one.totals.source) & (calls["op"] == one.totals.op)]
        found += float(np.sum(mine[mine > _BEYOND * usual_ns] - usual_ns))
    return found


def _comparable(case: Case) -> Kind:
    """Calls with a duration in the reference, too: what is only counted there would seem to have been slow before."""
    kinds = FIRST_USE
    for name, kind in _TIMES.items():
        if not was_traced(case, (name,)):
            kinds &= ~kind
    return kinds


def _was_there_at_once(case: Case) -> bool:
    """Whether the first second lost about as much as the rest; else something began later."""
    first = case.sync_intervals["sync_end_ns"] < case.window.begin_ns + SECOND_NS
    begun_ns = float((case.sync_intervals["sync_end_ns"] - case.sync_intervals["prev_sync_end_ns"])[first].sum())
    rate = float(case.excess_ns[first].sum()) / max(begun_ns, 1.0)
    return rate >= _AT_ONCE * case.lost_ns / max(case.wall_ns, 1)


def watch(evidence: Evidence) -> Iterator[Finding]:
    """First calls that were slow before the first sync interval began, or still are: no interval has lost that time."""
    for one in first_uses(evidence):
        yield _ongoing(evidence, one)
    for number, gpu_stream in evidence.gpu_streams.items():
        process = evidence.processes.get(number)
        if process is None or not len(gpu_stream) or process.start_ns < evidence.window.begin_ns - FIRST_NS:
            continue
        before = Window(begin_ns=evidence.window.begin_ns, end_ns=int(gpu_stream["prev_sync_end_ns"][0]))
        if slow := _slow_first_calls(evidence, process, before):
            yield _first_finding(evidence, process, before, slow)


def _ongoing(evidence: Evidence, one: FirstUse) -> Finding:
    """What goes on is no fault yet; it is told so that nobody takes it for a hang, and is over when it returns."""
    length_ns, name = one.seen_ns - one.since_ns, evidence.processes[one.process].name
    return Finding(
        cause=CAUSE,
        resource="first use",
        root=str(one.pid),
        kind=FindingKind.EVENT,
        severity=Severity.LOW,
        window=Window(begin_ns=one.since_ns, end_ns=one.seen_ns + 1),
        process=one.process,
        summary=f"{name} [{one.pid}] has been loading or compiling code for {format_ns(length_ns)}, inside {one.name}, "
        f"before its first step: it is working, not hung",
        line=one.line,
        chain=(
            Link(
                text=f"its thread was on a CPU, or waited for one, for {format_ns(one.awake_ns)} of that",
                seen_ns=one.awake_ns,
                structure="thread-state time while the call was in flight, or samples inside the driver",
                order="no step has ended before",
            ),
        ),
        fixes=_FIXES,
        evidence={"open (ns)": length_ns, "awake (ns)": one.awake_ns, "inside": one.name},
    )


def _slow_first_calls(evidence: Evidence, process: Process, before: Window) -> list[Call]:
    """The longest ones of one layer, where they are far beyond the mean of the same calls."""
    everything = evidence.ops((evidence.window,), process.process)
    means = {(one.source, one.op): one.sum_ns / max(one.count, 1) for one in everything}
    for source in (Source.CUDA, Source.DRIVER):
        calls = evidence.reader.worst_calls(before, process=process.process, source=source, limit=_MOST_CALLS)
        slow = [
            one
            for one in calls
            if kind_of_op(one.source, one.op) & FIRST_USE
            and one.duration_ns > _FAR_BEYOND * means.get((one.source, one.op), one.duration_ns)
        ]
        if sum(one.duration_ns for one in slow) >= _WORTH_NS:
            return slow
    return []


def _first_finding(evidence: Evidence, process: Process, before: Window, slow: Sequence[Call]) -> Finding:
    first, took = slow[0], sum(one.duration_ns for one in slow)
    times = f"{len(slow)} first calls" if len(slow) > 1 else "its first call"
    return Finding(
        cause=CAUSE,
        resource="first use",
        root=str(process.pid),
        kind=FindingKind.EVENT,
        severity=Severity.LOW,
        window=Window(begin_ns=min(one.start_ns for one in slow), end_ns=before.end_ns),
        process=process.process,
        summary=f"{process.name} [{process.pid}] spent {format_ns(took)} in {times} before its first step, most of "
        f"it in {first.name}",
        line=evidence.call_line(before, process.process, first.source, first.op),
        chain=(
            Link(
                text=f"{first.name} loaded code or made a context the first time it was used",
                seen_ns=took,
                structure="recorded calls of a process that was seen to begin",
                order="later calls of the same kind are fast",
            ),
        ),
        fixes=_FIXES,
        evidence={"first calls (ns)": took, "slowest": first.name},
    )


RULE = Rule(
    cause=CAUSE,
    title="slow first calls: contexts, modules, memory",
    order=46,
    needs=("sync_intervals", "op_stats", "events"),
    wants=("launch_times", "allocation_times"),
    shows="the first calls of a process that began while it was recorded, against its later ones; while a first call "
    "lasts, how long it has, and how much of that its thread was on a CPU",
    limits="a process that ran before the recording began has no first steps in it; half of the time must lie in "
    "recorded calls of at least five times the baseline duration",
    find=find,
    explains_start=True,
    watch=watch,
)
