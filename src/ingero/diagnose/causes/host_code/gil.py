"""The thread that feeds the GPU waited for the interpreter lock that another thread of its process held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import KEPT_FROM_RUNNING
from ingero.diagnose.causes.host_code.thread_waits import running_meanwhile
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import CodeLine, Culprit, Finding, Fix, Link, Part
from ingero.diagnose.offcpu.critical_path import GIL, Segment
from ingero.diagnose.samples.stack_samples import at, spent
from ingero.ops import OPS, Source
from ingero.store.arrays.spans import Spans
from ingero.store.records import Window
from ingero.units import SECOND_NS

CAUSE = "gil"
_IN_CALL = 0.5  # of the waits: then the call is what keeps the lock
_LONGEST_CALL_NS = 60 * SECOND_NS  # before the first wait, in which such a call may have begun
_GPU = (int(Source.CUDA), int(Source.DRIVER), int(Source.NCCL))
NAME_OF = {(int(op.source), op.code): op.name for op in OPS}
MIN_KNOWN = 0.3  # of the waiting for own threads; where it slept is not known, a handover may be of any lock


def find(case: Case) -> Iterator[Finding]:
    """Waits at the lock; where it is not known where that lies, of one switch interval that another thread ended."""
    own = case.process.pid
    is_place_known = any(one.pid == own and one.state == GIL and one.depth > 0 for one in case.waits)

    def is_gil(one: Segment) -> bool:
        is_holder = not is_place_known and one.depth > 0 and one.state not in KEPT_FROM_RUNNING
        return one.pid == own and (one.state == GIL or is_holder)

    for part in (Part.IDLE, Part.LAUNCH):
        whole = case.path_share(part, is_gil)
        known = case.path_share(part, lambda one: one.pid == own and one.state == GIL)
        if whole and known < MIN_KNOWN * whole and case.total((part,), ("sleep",)) > 0.1 * case.lost_ns:
            return
    claims = case.take_path(is_gil)
    if not claims:
        return
    lost = sum(claims.values())
    holder, line, doing = _holder(case)
    inside = _call_of_holder(case)
    if inside:
        holder, line, doing = inside.thread, inside.line, f" inside {inside.name}"
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
                order=f"{holder} was in {inside.name} until it handed the lock over"
                if inside
                else f"{holder} ran until it handed the lock over",
            ),
        ),
        fixes=(
            Fix(
                text=f"release the GIL while {inside.name} waits",
                command="ctypes.CDLL, not PyDLL; py::call_guard<py::gil_scoped_release>(); Py_BEGIN_ALLOW_THREADS",
            ),
        )
        if inside
        else (
            Fix(text="move pure-Python work out of the process", command="multiprocessing.Process(...)"),
            Fix(text="or shorten the switch interval", command="sys.setswitchinterval(0.0005)"),
        ),
        evidence={"holder": holder, "inside": inside.name if inside else None},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A call in which a thread kept the lock."""

    thread: str
    name: str
    line: CodeLine | None


def _call_of_holder(case: Case) -> _Held | None:
    """The call that another thread of the process was in for most of the time in which the lock was waited for."""
    own = case.process.pid
    waits = [one for one in case.waits if one.pid == own and one.state == GIL and one.depth == 0]
    total = sum(one.duration_ns for one in waits)
    if not total:
        return None
    first_ns, last_ns = min(one.begin_ns for one in waits), max(one.end_ns for one in waits)
    around = Window(begin_ns=first_ns - _LONGEST_CALL_NS, end_ns=last_ns)
    calls = case.evidence.events(around, _GPU, case.process.process)
    calls = calls[~np.isin(calls["tid"], [one.tid for one in waits])]
    calls = calls[calls["start_ns"] + calls["duration_ns"] > first_ns]
    spans = Spans(Window(begin_ns=one.begin_ns, end_ns=one.end_ns) for one in waits)
    held = spans.shares(calls["start_ns"], calls["start_ns"] + calls["duration_ns"]) * calls["duration_ns"]
    inside: Counter[tuple[int, int, int]] = Counter()
    stacks: Counter[tuple[tuple[int, int, int], int]] = Counter()
    for row, ns in zip(calls, held.tolist(), strict=True):
        key = (int(row["tid"]), int(row["source"]), int(row["op"]))
        inside[key] += int(ns)
        stacks[key, int(row["stack_hash"])] += int(ns) if row["stack_hash"] else 0
    key, ns = next(iter(inside.most_common(1)), ((0, 0, 0), 0))
    if ns < _IN_CALL * total:
        return None
    stack = max((one for one in stacks if one[0] == key), key=lambda one: stacks[one])[1]
    return _Held(
        thread=case.evidence.thread_names.get(key[0], str(key[0])),
        name=NAME_OF.get((key[1], key[2]), "a call"),
        line=case.evidence.own_line(stack) if stack else None,
    )


def _holder(case: Case) -> tuple[str, CodeLine | None, str]:
    """The thread that ran most while the lock was waited for, its line, and what is to be said of it."""
    waits = [one for one in case.waits if one.pid == case.process.pid]
    known = [one for one in waits if one.state == GIL]
    waiters = {one.tid for one in known if one.depth == 0} or {
        int(tid) for tid in case.sync_intervals["first_launch_tid"]
    }
    tid, found = running_meanwhile(case, known, waiters)
    if tid:
        is_collecting = 2 * sum(one.ns for one in found if one.is_collecting) > sum(one.ns for one in found)
        doing = " collecting garbage" if is_collecting else ""
        return case.evidence.thread_names.get(tid, str(tid)), spent(found).line, doing
    holders: Counter[str] = Counter()
    for one in waits:
        if one.depth > 0:
            holders[case.evidence.thread_names.get(one.tid) or case.thread_name(one)] += one.duration_ns
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
    find=find,
)
