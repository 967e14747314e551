"""First uses that load or compile code: a call takes minutes on a CPU, and does not hang.

Known from the in-flight call, whose thread is awake; where the call began before it could be seen, from samples of its
thread inside the driver or a kernel compiler.
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
from ingero.diagnose.lost_time.ended import has_ended
from ingero.diagnose.samples.stack_samples import RUN
from ingero.ops import Kind
from ingero.store.call_stacks import CallStack
from ingero.store.records import InFlight
from ingero.units import SECOND_NS

FIRST_USE = Kind.LOAD | Kind.LAUNCH | Kind.ALLOC | Kind.CAPTURE | Kind.CONTEXT
MIN_FIRST_USE_NS = 4 * SECOND_NS  # contexts, modules and first allocations of a healthy program take less
_MIN_AWAKE_RATIO = 0.5  # of the time since the call was first seen in flight: a thread that hangs sleeps
_FIRST_LOOK_NS = 2 * SECOND_NS  # within this time after its start a call has been seen in flight
_LOADING_CALLS = re.compile(r"cu(da)?(Module|Library|Link|Launch|KernelGet|FuncGet|Init|Ctx|DevicePrimary|Device)\w*$")
_DRIVER_LIBRARIES = re.compile(r"lib(cuda|cudart)\b")
_COMPILER_LIBRARIES = re.compile(r"lib(nvidia-ptxjitcompiler|nvrtc|nvJitLink|nvptxcompiler|nvidia-nvvm|nvvm)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstUse:
    """A process that is loading or compiling code and has made no step yet.

    since_ns, seen_ns: when that was first and last seen. awake_ns: how long its thread was running or runnable.
    """

    process: int
    pid: int
    name: str
    since_ns: int
    seen_ns: int
    awake_ns: int
    line: CodeLine | None


def is_compiling(evidence: Evidence, call: InFlight) -> bool:
    """Whether an in-flight call is a first use whose thread works, rather than one that hangs."""
    seen_ns = call.time_ns - call.since_ns - _FIRST_LOOK_NS
    return (
        bool(kind_of_op(call.source, call.op) & FIRST_USE)
        and not _has_stepped(evidence, call.process, call.since_ns)
        and seen_ns > 0
        and call.awake_ns >= _MIN_AWAKE_RATIO * seen_ns
    )


def first_uses(evidence: Evidence) -> Iterator[FirstUse]:
    """First uses in progress at the end of the window, one per process."""
    by_process: dict[int, FirstUse] = {}
    for call in evidence.reader.in_flight(evidence.window):
        is_long = call.time_ns - call.since_ns >= MIN_FIRST_USE_NS
        if is_long and not has_ended(evidence, call.process, call.time_ns) and is_compiling(evidence, call):
            first_use = FirstUse(
                process=call.process,
                pid=call.pid,
                name=call.name,
                since_ns=call.since_ns,
                seen_ns=call.time_ns,
                awake_ns=call.awake_ns,
                line=evidence.own_line(call.stack_hash) if call.stack_hash else None,
            )
            by_process.setdefault(call.process, first_use)  # the oldest of nested ones comes first
    yield from by_process.values()
    for number in sorted(_busy_processes(evidence) - by_process.keys()):
        process = evidence.processes[number]
        if process.is_traced and not _has_stepped(evidence, number, evidence.window.end_ns):
            sampled = _sampled_first_use(evidence, number, process.pid)
            if sampled and not has_ended(evidence, number, sampled.seen_ns):
                yield sampled


def _busy_processes(evidence: Evidence) -> set[int]:
    """Processes that ran long enough for a reportable first use; hundreds of short-lived ones are skipped."""
    totals = evidence.thread_state_totals(evidence.window)
    return evidence.processes.keys() & {row.process for row in totals if row.clocks.run_ns >= MIN_FIRST_USE_NS}


def _sampled_first_use(evidence: Evidence, number: int, pid: int) -> FirstUse | None:
    """A first use known from samples of the thread that was in loading code most."""
    if evidence.why_unavailable((SAMPLES,)):
        return None
    rows = evidence.samples((evidence.window,), number)
    rows = rows[rows["state"] == RUN]
    evidence.stacks.read(set(rows["stack_hash"].tolist()))
    times: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    names: dict[int, Counter[str]] = defaultdict(Counter)
    for tid, time_ns, weight_ns, stack_hash in rows[["tid", "time_ns", "weight_ns", "stack_hash"]].tolist():
        name = _loading_call(evidence.stacks.of(stack_hash))
        if name:
            times[tid].append((time_ns, weight_ns, stack_hash))
            names[tid][name] += weight_ns
    tid = max(times, key=lambda thread: names[thread].total(), default=0)
    if not tid or names[tid].total() < MIN_FIRST_USE_NS:
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


def _loading_call(stack: CallStack | None) -> str:
    """The outermost loading call into the driver, or the compiler library, that a thread is in; "" for none."""
    name = ""
    for place in stack.native if stack else ():
        if _COMPILER_LIBRARIES.match(place.file):
            name = name or place.file
        elif _DRIVER_LIBRARIES.match(place.file) and _LOADING_CALLS.match(place.symbol):
            name = place.symbol
    return name


def _has_stepped(evidence: Evidence, process: int, before_ns: int) -> bool:
    gpu_stream = evidence.gpu_streams.get(process)
    return gpu_stream is not None and bool((gpu_stream["sync_end_ns"] <= before_ns).any())
