"""The launching thread waited for the GIL, held by another thread of its process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import KEPT_FROM_RUNNING
from ingero.diagnose.causes.host_code.thread_waits import thread_running_meanwhile
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import CodeLine, Culprit, Finding, Fix, Link, Part
from ingero.diagnose.offcpu.critical_path import GIL, PathSegment
from ingero.diagnose.samples.stack_samples import at, sampled_time
from ingero.ops import OPS, Source
from ingero.store.arrays.spans import Spans
from ingero.store.records import Window
from ingero.units import SECOND_NS

CAUSE = "gil"
_MIN_SHARE_IN_CALL = 0.5  # of the waits: above it, that call keeps the lock
_LONGEST_CALL_NS = 60 * SECOND_NS  # how long before the first wait such a call may have begun
_GPU_SOURCES = (int(Source.CUDA), int(Source.DRIVER), int(Source.NCCL))
NAME_OF = {(int(op.source), op.code): op.name for op in OPS}
# of the waits for own threads; where it is unknown what they wait for, a handover may be of any lock
MIN_KNOWN_SHARE = 0.3


def explain(case: Case) -> Iterator[Finding]:
    """Waits at the GIL; where its address is unknown, waits of one switch interval that another thread ended."""
    own = case.process.pid
    is_place_known = any(wait.pid == own and wait.state == GIL and wait.depth > 0 for wait in case.waits)

    def is_gil(segment: PathSegment) -> bool:
        is_holder = not is_place_known and segment.depth > 0 and segment.state not in KEPT_FROM_RUNNING
        return segment.pid == own and (segment.state == GIL or is_holder)

    for part in (Part.IDLE, Part.LAUNCH):
        gil_share = case.path_share(part, is_gil)
        known_share = case.path_share(part, lambda segment: segment.pid == own and segment.state == GIL)
        if (
            gil_share
            and known_share < MIN_KNOWN_SHARE * gil_share
            and case.total((part,), ("sleep",)) > 0.1 * case.lost_ns
        ):
            return
    claims = case.claimable_on_path(is_gil)
    if not claims:
        return
    lost = sum(claims.values())
    holder, line, doing = _holder(case)
    holding_call = _holding_call(case)
    if holding_call:
        holder, line, doing = holding_call.thread, holding_call.line, f" inside {holding_call.name}"
    yield Finding(
        cause=CAUSE,
        resource="interpreter lock",
        root=str(own),
        summary=f"{case.who} lost {case.amount(lost)} waiting for the interpreter lock (GIL), held by its thread "
        f"{holder}{doing}{at(line)}",
        claims=claims,
        culprits=(Culprit(pid=own, name=holder, lost_ns=lost),),
        line=line,
        chain=(
            Link(
                text="the launching thread waited for the lock repeatedly",
                seen_ns=lost,
                structure="sleeps at the lock of its interpreter"
                if is_place_known
                else "sleeps of one switch interval (5 ms), each ended by a timer and followed by a handover",
                order=f"{holder} was in {holding_call.name} until it handed the lock over"
                if holding_call
                else f"{holder} ran until it handed the lock over",
            ),
        ),
        fixes=(
            Fix(
                text=f"release the GIL while {holding_call.name} waits",
                command="ctypes.CDLL, not PyDLL; py::call_guard<py::gil_scoped_release>(); Py_BEGIN_ALLOW_THREADS",
            ),
        )
        if holding_call
        else (
            Fix(text="move pure-Python work out of the process", command="multiprocessing.Process(...)"),
            Fix(text="or shorten the switch interval", command="sys.setswitchinterval(0.0005)"),
        ),
        evidence={"holder": holder, "inside": holding_call.name if holding_call else None},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _HoldingCall:
    """A call during which a thread kept the GIL."""

    thread: str
    name: str
    line: CodeLine | None


def _holding_call(case: Case) -> _HoldingCall | None:
    """The call that another thread of the process was in for most of the time in which the GIL was waited for."""
    own = case.process.pid
    waits = [wait for wait in case.waits if wait.pid == own and wait.state == GIL and wait.depth == 0]
    total = sum(wait.duration_ns for wait in waits)
    if not total:
        return None
    first_ns, last_ns = min(wait.begin_ns for wait in waits), max(wait.end_ns for wait in waits)
    searched = Window(begin_ns=first_ns - _LONGEST_CALL_NS, end_ns=last_ns)
    calls = case.evidence.events(searched, _GPU_SOURCES, case.process.process)
    calls = calls[~np.isin(calls["tid"], [wait.tid for wait in waits])]
    calls = calls[calls["start_ns"] + calls["duration_ns"] > first_ns]
    spans = Spans(Window(begin_ns=wait.begin_ns, end_ns=wait.end_ns) for wait in waits)
    held_ns = spans.shares(calls["start_ns"], calls["start_ns"] + calls["duration_ns"]) * calls["duration_ns"]
    ns_by_call: Counter[tuple[int, int, int]] = Counter()
    ns_by_stack: Counter[tuple[tuple[int, int, int], int]] = Counter()
    for row, ns in zip(calls, held_ns.tolist(), strict=True):
        key = (int(row["tid"]), int(row["source"]), int(row["op"]))
        ns_by_call[key] += int(ns)
        ns_by_stack[key, int(row["stack_hash"])] += int(ns) if row["stack_hash"] else 0
    key, ns = next(iter(ns_by_call.most_common(1)), ((0, 0, 0), 0))
    if ns < _MIN_SHARE_IN_CALL * total:
        return None
    stack = max((place for place in ns_by_stack if place[0] == key), key=lambda place: ns_by_stack[place])[1]
    return _HoldingCall(
        thread=case.evidence.thread_names.get(key[0], str(key[0])),
        name=NAME_OF.get((key[1], key[2]), "a call"),
        line=case.evidence.own_line(stack) if stack else None,
    )


def _holder(case: Case) -> tuple[str, CodeLine | None, str]:
    """The thread that ran most while the GIL was waited for, its line, and what it did, in words."""
    waits = [wait for wait in case.waits if wait.pid == case.process.pid]
    known = [wait for wait in waits if wait.state == GIL]
    waiters = {wait.tid for wait in known if wait.depth == 0} or {
        int(tid) for tid in case.sync_intervals["first_launch_tid"]
    }
    tid, groups = thread_running_meanwhile(case, known, waiters)
    if tid:
        is_collecting = 2 * sum(group.ns for group in groups if group.is_collecting) > sum(group.ns for group in groups)
        doing = " collecting garbage" if is_collecting else ""
        return case.evidence.thread_names.get(tid, str(tid)), sampled_time(groups).line, doing
    holders: Counter[str] = Counter()
    for wait in waits:
        if wait.depth > 0:
            holders[case.evidence.thread_names.get(wait.tid) or case.thread_name(wait)] += wait.duration_ns
    return next((name for name, _ in holders.most_common(1)), "another thread"), None, ""


RULE = Rule(
    cause=CAUSE,
    title="another thread held the interpreter lock (GIL)",
    order=35,
    needs=("sync_intervals", "offcpu"),
    shows="sleeps on the critical path at the lock of the interpreter, however short, and the thread that ran "
    "meanwhile, with its line",
    limits="the address of that lock is read from the interpreter; without stacks, or where it cannot be read, it is "
    "inferred from three sleeps of one switch interval (5 ms), of any thread, within ten seconds; without those, or "
    "with a C library other than glibc, only waits of one interval are reported, and shorter ones look like another "
    "lock; so do waits for a sub-interpreter's own lock",
    explain=explain,
)
