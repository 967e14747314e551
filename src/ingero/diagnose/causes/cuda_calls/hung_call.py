"""A call has been in flight so long that the process hangs in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cuda_calls.first_use import is_compiling
from ingero.diagnose.causes.nccl.hung_ranks import HANGS_NS as RANK_HANGS_NS
from ingero.diagnose.causes.nccl.hung_ranks import hung_in_communication, is_longest_yet
from ingero.diagnose.causes.nccl.nccl_straggler import straggler
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Culprit, Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION
from ingero.diagnose.lost_time.ended import has_ended, severity_of_stop
from ingero.diagnose.steps.pacing import waited_ns
from ingero.ops import OPS, Kind, Source
from ingero.store.records import InFlight, Window
from ingero.units import format_ns

CAUSE = "hung-call"
# two seconds, as checks are a second apart; and longer than every earlier call of the same kind
HANGS_NS = 1_900_000_000
TIMES_LONGEST = 10  # times the longest earlier call of the same kind
MIN_LATE_RANK_SHARE = 0.5  # of the time in such syncs, lost by a late rank on its host: then they waited for that rank
_NAME_BY_OP = {(int(op.source), op.code): op.name for op in OPS}
_CHECK_ERRORS_FIX = Fix(text="check for GPU errors", command="sudo dmesg | grep -i xid; nvidia-smi -q | grep -i error")
_WAITING_OPS = {(int(op.source), op.code) for op in OPS if op.kind & (Kind.SYNC | Kind.COPY | Kind.LAUNCH | Kind.ALLOC)}


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Calls in flight for seconds, far longer than any that returned; NCCL calls have rules of their own."""
    open_calls: dict[tuple[int, int, int], list[InFlight]] = defaultdict(list)
    for call in evidence.reader.in_flight(evidence.window):
        is_wait = call.source != int(Source.NCCL) and (call.source, call.op) in _WAITING_OPS
        if is_wait and _hangs(evidence, call) and not (_was_stopped(evidence, call) or is_compiling(evidence, call)):
            open_calls[call.process, call.source, call.op].append(call)
    for calls in open_calls.values():
        longest = max(calls, key=_open_ns)
        if not hung_in_communication(evidence, longest.process, longest.since_ns, longest.time_ns):
            yield _finding(evidence, longest)


def explain(case: Case) -> Iterator[Finding]:
    """Syncs that hung and returned: their GPU time is not that of a slower GPU."""
    step_ns_by_type = {step_type: best.reference.t_ns for step_type, best in case.references.items()}
    times = np.array([step_ns_by_type.get(int(step_type), 0.0) for step_type in case.sync_intervals["step_type"]])
    waited = waited_ns(case.sync_intervals)
    hung = (times > 0) & (
        waited >= np.maximum(_min_hang_ns(case.evidence, case.process.process), TIMES_LONGEST * times)
    )
    claims = case.claimable((Part.GPU,), (GPU_EXECUTION,), float(case.excess_ns[hung].sum())) if hung.any() else {}
    if not claims:
        return
    late_rank = straggler(case)
    if late_rank is not None and late_rank.host_ns >= MIN_LATE_RANK_SHARE * sum(claims.values()):
        return
    worst = case.sync_intervals[hung][int(np.argmax(waited[hung]))]
    window, source, op = _hung_call_of(case, worst)
    if hung_in_communication(case.evidence, case.process.process, window.begin_ns, window.end_ns):
        return
    name = _NAME_BY_OP.get((source, op), "a wait for its GPU")
    length = window.duration_ns
    line = case.evidence.call_line(case.window, case.process.process, source, op)
    yield Finding(
        cause=CAUSE,
        resource=name,
        root=str(case.process.pid),
        kind=FindingKind.EVENT,
        window=window,
        summary=f"{case.who} was inside {name} for {format_ns(length)}, then went on",
        claims=claims,
        line=line,
        chain=(
            Link(
                text=f"{name} did not return for {format_ns(length)}",
                seen_ns=length,
                expected_ns=int(times[hung][0]),
                structure="the longest call of its step" if case.is_of_steps else "the sync of the main stream",
                order="the steps before and after it took their baseline time",
            ),
        ),
        fixes=(_CHECK_ERRORS_FIX,),
        evidence={"open (ns)": length, "syncs that hung": int(hung.sum())},
    )


def _hung_call_of(case: Case, worst: Any) -> tuple[Window, int, int]:
    """The hung call's window, source and op: the sync, or the longest call of a step."""
    if case.is_of_steps:
        step = Window(begin_ns=int(worst["prev_sync_end_ns"]), end_ns=int(worst["sync_end_ns"]))
        for call in case.evidence.reader.worst_calls(step, process=case.process.process, limit=1):
            end_ns = min(call.start_ns + call.duration_ns, step.end_ns)
            return Window(begin_ns=call.start_ns, end_ns=end_ns), call.source, call.op
    return (
        Window(begin_ns=int(worst["sync_start_ns"]), end_ns=int(worst["sync_end_ns"])),
        int(worst["source"]),
        int(worst["op"]),
    )


def _min_hang_ns(evidence: Evidence, process: int) -> int:
    """The minimum duration of a hang; of a rank as long as for hung ranks, because its peers may be missing."""
    return RANK_HANGS_NS if evidence.peers(process) else HANGS_NS


def _hangs(evidence: Evidence, call: InFlight) -> bool:
    if _open_ns(call) < _min_hang_ns(evidence, call.process) or not is_longest_yet(evidence, call):
        return False
    before = Window(begin_ns=evidence.window.begin_ns, end_ns=max(call.since_ns, evidence.window.begin_ns + 1))
    earlier_calls = [
        earlier
        for earlier in evidence.reader.worst_calls(
            before, process=call.process, source=call.source, op=call.op, limit=1
        )
        if earlier.start_ns + earlier.duration_ns <= call.since_ns
    ]
    longest = max((earlier.duration_ns for earlier in earlier_calls), default=0)
    return _open_ns(call) >= TIMES_LONGEST * longest


def _was_stopped(evidence: Evidence, call: InFlight) -> bool:
    """Whether the process was stopped during the call: then the signal keeps it in flight."""
    return any(
        stop.begin_ns < call.time_ns and stop.end_ns > call.since_ns for stop in evidence.stopped_seconds(call.process)
    )


def _open_ns(call: InFlight) -> int:
    return call.time_ns - call.since_ns


def _finding(evidence: Evidence, call: InFlight) -> Finding:
    name = evidence.processes[call.process].name if call.process in evidence.processes else ""
    line = evidence.own_line(call.stack_hash) if call.stack_hash else None
    place = f" from {line}" if line else ""
    is_over = has_ended(evidence, call.process, call.time_ns)
    verb, ending_text = ("was", ", then went on") if is_over else ("has been", "")
    return Finding(
        cause=CAUSE,
        resource=call.name,
        root=str(call.pid),
        kind=FindingKind.EVENT,
        severity=severity_of_stop(evidence, _open_ns(call), is_over=is_over),
        window=Window(begin_ns=call.since_ns, end_ns=call.time_ns + 1),
        summary=f"{name} [{call.pid}] {verb} inside {call.name} for {format_ns(_open_ns(call))}{place}{ending_text}",
        culprits=(Culprit(pid=call.pid, name=name),),
        line=line,
        chain=(
            Link(
                text=f"thread {call.tid} entered {call.name} and had not returned when last seen",
                seen_ns=_open_ns(call),
                structure="the in-flight call in the thread's own frame",
                order="it was no longer open when last seen" if is_over else "the thread has recorded nothing since",
            ),
        ),
        fixes=(
            *(() if is_over else (Fix(text="show where the program waits", command=f"py-spy dump --pid {call.pid}"),)),
            _CHECK_ERRORS_FIX,
        ),
        evidence={"open (ns)": _open_ns(call), "thread": call.tid},
    )


RULE = Rule(
    cause=CAUSE,
    title="a call does not return",
    order=20,
    needs=("in_flight", "thread_state_seconds"),
    improves_with=("launch_times", "allocation_times"),
    shows="the in-flight call, since when, and the Python line it was made from; and that its process was not stopped",
    limits="why the GPU or driver does not answer is not visible here; a kernel that runs for seconds looks the "
    "same until it ends",
    explain=explain,
    find_events=find_events,
)
