"""Code that is loaded or compiled the first time it is used: a call that takes minutes on a CPU, and does not hang.

Known by the open call, whose thread is awake all the while; where the call began before it could be seen, by samples of
its thread inside the driver or a compiler of kernels.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ingero.diagnose.cases.call_growth import kind_of_op
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.recorded import SAMPLES
from ingero.diagnose.findings import CodeLine
from ingero.diagnose.lost_time.ended import has_passed
from ingero.diagnose.samples.stack_samples import RUN
from ingero.ops import Kind
from ingero.store.call_stacks import CallStack
from ingero.store.records import InFlight
from ingero.units import SECOND_NS

FIRST_USE = Kind.LOAD | Kind.LAUNCH | Kind.ALLOC | Kind.CAPTURE | Kind.CONTEXT
WORTH_NS = 4 * SECOND_NS  # a context, modules and first allocations of a healthy program take less
_AWAKE = 0.5  # of the time since it was first seen open: a call that hangs sleeps
_FIRST_LOOK_NS = 2 * SECOND_NS  # after its begin it has been seen open
_LOADS = re.compile(r"cu(da)?(Module|Library|Link|Launch|KernelGet|FuncGet|Init|Ctx|DevicePrimary|Device)\w*$")
_DRIVER = re.compile(r"lib(cuda|cudart)\b")
_COMPILERS = re.compile(r"lib(nvidia-ptxjitcompiler|nvrtc|nvJitLink|nvptxcompiler|nvidia-nvvm|nvvm)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstUse:
    """A process that is loading or compiling, and has not made a step yet.

    since_ns, seen_ns: when it was first and last seen to. awake_ns: how long its thread has run, or could have.
    """

    process: int
    pid: int
    name: str
    since_ns: int
    seen_ns: int
    awake_ns: int
    line: CodeLine | None


def is_compiling(evidence: Evidence, call: InFlight) -> bool:
    """Whether an open call is a first use whose thread works, rather than one that waits for what does not come."""
    seen_ns = call.time_ns - call.since_ns - _FIRST_LOOK_NS
    return (
        bool(kind_of_op(call.source, call.op) & FIRST_USE)
        and not _has_stepped(evidence, call.process, call.since_ns)
        and seen_ns > 0
        and call.awake_ns >= _AWAKE * seen_ns
    )


def first_uses(evidence: Evidence) -> Iterator[FirstUse]:
    """Those that go on at the end of the window, each process once."""
    found: dict[int, FirstUse] = {}
    for call in evidence.reader.in_flight(evidence.window):
        is_long = call.time_ns - call.since_ns >= WORTH_NS
        if is_long and not has_passed(evidence, call.process, call.time_ns) and is_compiling(evidence, call):
            one = FirstUse(
                process=call.process,
                pid=call.pid,
                name=call.name,
                since_ns=call.since_ns,
                seen_ns=call.time_ns,
                awake_ns=call.awake_ns,
                line=evidence.own_line(call.stack_hash) if call.stack_hash else None,
            )
            found.setdefault(call.process, one)  # the oldest of nested ones comes first
    yield from found.values()
    for number in sorted(_busy(evidence) - found.keys()):
        process = evidence.processes[number]
        if process.is_traced and not _has_stepped(evidence, number, evidence.window.end_ns):
            sampled = _sampled(evidence, number, process.pid)
            if sampled and not has_passed(evidence, number, sampled.seen_ns):
                yield sampled


def _busy(evidence: Evidence) -> set[int]:
    """Processes that have run for as long as is worth telling: of hundreds of short-lived ones nothing is asked."""
    totals = evidence.thread_state_totals(evidence.window)
    return evidence.processes.keys() & {one.process for one in totals if one.clocks.run_ns >= WORTH_NS}


def _sampled(evidence: Evidence, number: int, pid: int) -> FirstUse | None:
    """By the samples of the thread that was there most."""
    if evidence.missing((SAMPLES,)):
        return None
    rows = evidence.samples((evidence.window,), number)
    rows = rows[rows["state"] == RUN]
    evidence.stacks.read(set(rows["stack_hash"].tolist()))
    times: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    names: dict[int, Counter[str]] = defaultdict(Counter)
    for tid, time_ns, weight_ns, stack_hash in rows[["tid", "time_ns", "weight_ns", "stack_hash"]].tolist():
        name = _inside(evidence.stacks.of(stack_hash))
        if name:
            times[tid].append((time_ns, weight_ns, stack_hash))
            names[tid][name] += weight_ns
    tid = max(times, key=lambda one: names[one].total(), default=0)
    if not tid or names[tid].total() < WORTH_NS:
        return None
    return FirstUse(
        process=number,
        pid=pid,
        name=names[tid].most_common(1)[0][0],
        since_ns=min(times[tid])[0],
        seen_ns=max(times[tid])[0],
        awake_ns=names[tid].total(),
        line=evidence.own_line(max(times[tid])[2]),
    )


def _inside(stack: CallStack | None) -> str:
    """The outermost call into the driver that loads, or the compiler that a thread is in; "" for none."""
    found = ""
    for place in stack.native if stack else ():
        if _COMPILERS.match(place.file):
            found = found or place.file
        elif _DRIVER.match(place.file) and _LOADS.match(place.symbol):
            found = place.symbol
    return found


def _has_stepped(evidence: Evidence, process: int, before_ns: int) -> bool:
    gpu_stream = evidence.gpu_streams.get(process)
    return gpu_stream is not None and bool((gpu_stream["sync_end_ns"] <= before_ns).any())
