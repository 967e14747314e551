"""CUDA graphs were made and are not launched, or not any more or much less, while kernels are launched one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ingero.diagnose.causes.cuda_calls.graph_captures import GraphCall, graph_calls, launches, users
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Culprit, Fact, Finding, FindingKind, Fix, Link, Severity
from ingero.store.records import Process, Window
from ingero.units import SECOND_NS, format_count, format_ns, format_number

CAUSE = "cuda-graph-unused"
UNUSED_NS = 10_000_000_000  # of other launches, after the graph was there
STOPPED_NS = 3_000_000_000
MIN_RATE = 5.0  # launches of graphs a second, before their end is one
DROPPED = 0.5  # of the rate before, and less
MIN_LAUNCHES = 1000
MORE_LAUNCHES = 2.0  # times as many single launches as before: the kernels of the graphs are launched one by one
_MOST_PIECES = 60


def watch(evidence: Evidence) -> Iterator[Finding]:
    """Processes with graphs of which none is launched; then those that have stopped launching them."""
    for user in users(evidence):
        made = [
            one
            for one in graph_calls(evidence, evidence.window, user.process)
            if "Instantiate" in one.name and one.ret_code == 0
        ]
        unused = _unused(evidence, user, made) if made else None
        if unused:
            yield unused
    for number, gpu_stream in evidence.gpu_streams.items():
        process = evidence.processes.get(number)
        is_long = gpu_stream["sync_end_ns"][-1] - gpu_stream["prev_sync_end_ns"][0] > 2 * STOPPED_NS
        stopped = _stopped(evidence, process) if process and is_long else None
        if stopped:
            yield stopped


def _unused(evidence: Evidence, process: Process, made: list[GraphCall]) -> Finding | None:
    first, last = made[0], made[-1]
    graphs, _ = launches(evidence, Window(begin_ns=first.begin_ns, end_ns=evidence.window.end_ns), process.process)
    since = Window(begin_ns=last.end_ns, end_ns=evidence.window.end_ns)
    others = launches(evidence, since, process.process)[1] if since.duration_ns >= UNUSED_NS else 0.0
    if graphs or others < MIN_LAUNCHES:
        return None
    line = evidence.own_line(first.stack_hash)
    return _finding(
        process,
        window=Window(begin_ns=first.begin_ns, end_ns=evidence.window.end_ns),
        summary=f"{process.name} [{process.pid}] made {len(made)} CUDA graphs{f' in {line}' if line else ''} and "
        f"launched none of them in {format_ns(since.duration_ns)}, but {format_count(others)} kernels one by one",
        link=Link(
            text=f"{first.name} succeeded, and no graph was launched afterwards",
            seen_ns=since.duration_ns,
            structure="exact counts of launches of graphs and of kernels",
            order="all launches counted came after the last graph was made",
        ),
        evidence={"graphs made": len(made), "graph launches": 0, "other launches": round(others)},
    )


def _stopped(evidence: Evidence, process: Process) -> Finding | None:
    """Graphs were launched at a steady rate, then none or much fewer, and more kernels than before."""
    if not launches(evidence, evidence.window, process.process)[0]:
        return None
    pieces = _pieces(evidence.window)
    length_s = pieces[0].duration_ns / SECOND_NS if pieces else 1.0
    counts = [(piece, *launches(evidence, piece, process.process)) for piece in pieces]
    rates = [(piece, graphs / length_s, others / length_s) for piece, graphs, others in counts]
    least = math.ceil(STOPPED_NS / SECOND_NS / length_s)
    if len(rates) < least:
        return None
    steady = sorted(graphs for _, graphs, _ in rates)[-least]  # at least so long at least this
    used = [index for index, (_, graphs, _) in enumerate(rates) if graphs > DROPPED * steady]
    end = used[-1] + 1 if used else len(rates)
    before, after = [rates[index] for index in used], rates[end + 1 :]  # the second in which they ended is mixed
    if steady < MIN_RATE or min(len(before), len(after)) < least:
        return None
    stopped = Window(begin_ns=rates[end][0].begin_ns, end_ns=evidence.window.end_ns)
    usual = sum(one[2] for one in before) / len(before)
    now = sum(one[2] for one in after) / len(after)
    if now * len(after) * length_s < MIN_LAUNCHES or now < MORE_LAUNCHES * max(usual, 1):
        return None
    graphs, left = (sum(one[1] for one in part) / len(part) for part in (before, after))
    fewer = f"{format_number(left, 2)} per second" if left else "none"
    return _finding(
        process,
        window=stopped,
        summary=f"{process.name} [{process.pid}] launched {format_number(graphs)} CUDA graphs per second, and has "
        f"launched {fewer} for {format_ns(stopped.duration_ns)}: it launches {format_count(now)} kernels per second "
        f"one by one (before: {format_count(usual)})",
        link=Link(
            text="the kernels of the graphs are launched one by one",
            seen_ns=stopped.duration_ns,
            structure="exact counts of launches of graphs and of kernels, second by second",
            order="the kernels became more when the graphs became fewer",
        ),
        evidence={
            "graphs per second before": round(graphs, 2),
            "graphs per second": round(left, 2),
            "kernels per second": round(now),
        },
    )


def _pieces(window: Window) -> list[Window]:
    """Whole seconds, more than one each where the window is long."""
    length = max(-(-window.duration_ns // _MOST_PIECES // SECOND_NS), 1) * SECOND_NS
    begins = range(window.begin_ns, window.end_ns - length + 1, length)
    return [Window(begin_ns=begin, end_ns=begin + length) for begin in begins]


def _finding(process: Process, *, window: Window, summary: str, link: Link, evidence: dict[str, Fact]) -> Finding:
    return Finding(
        cause=CAUSE,
        resource="cuda graph",
        root=str(process.pid),
        kind=FindingKind.EVENT,
        severity=Severity.LOW,
        window=window,
        summary=summary,
        culprits=(Culprit(pid=process.pid, name=process.name),),
        chain=(link,),
        fixes=(
            Fix(text="find why the graph is skipped: another shape, grad mode, or an input on the host"),
            Fix(text="log it in PyTorch", command="TORCH_LOGS=cudagraphs,perf_hints"),
        ),
        evidence=evidence,
    )


RULE = Rule(
    cause=CAUSE,
    title="CUDA graphs were made but not launched",
    order=90,
    needs=("op_stats", "events", "launches"),
    shows="how many graphs were made, and exact counts of launches of graphs and of kernels since",
    limits="of several graphs, one that is never launched beside others that are is not reported",
    watch=watch,
)
