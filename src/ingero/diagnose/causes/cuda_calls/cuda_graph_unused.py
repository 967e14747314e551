"""CUDA graphs were captured but are not launched, or no longer or much less often, while kernels are launched one by
one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ingero.diagnose.causes.cuda_calls.graph_captures import (
    GraphCall,
    graph_calls,
    launch_counts,
    processes_with_graphs,
)
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Culprit, Fact, Finding, FindingKind, Fix, Link, Severity
from ingero.store.records import Process, Window
from ingero.units import SECOND_NS, format_count, format_ns, format_number

CAUSE = "cuda-graph-unused"
UNUSED_NS = 10_000_000_000  # of other launches, after the graph was made
STOPPED_NS = 3_000_000_000  # without launches of graphs
MIN_RATE = 5.0  # launches of graphs per second, before their end is reported
MAX_RATE_RATIO = 0.5  # of the rate before
MIN_LAUNCHES = 1000  # of single kernels
MIN_TIMES_LAUNCHES = 2.0  # times as many single launches as before: the graphs' kernels are launched one by one
_MAX_PIECES = 60  # windows read, however long the recording is


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Processes that launch none of their graphs, and processes that stopped launching them."""
    for graph_user in processes_with_graphs(evidence):
        graphs_made = [
            call
            for call in graph_calls(evidence, evidence.window, graph_user.process)
            if "Instantiate" in call.name and call.ret_code == 0
        ]
        unused = _unused_finding(evidence, graph_user, graphs_made) if graphs_made else None
        if unused:
            yield unused
    for number, gpu_stream in evidence.gpu_streams.items():
        process = evidence.processes.get(number)
        is_long = gpu_stream["sync_end_ns"][-1] - gpu_stream["prev_sync_end_ns"][0] > 2 * STOPPED_NS
        stopped = _stopped_finding(evidence, process) if process and is_long else None
        if stopped:
            yield stopped


def _unused_finding(evidence: Evidence, process: Process, graphs_made: list[GraphCall]) -> Finding | None:
    first, last = graphs_made[0], graphs_made[-1]
    graphs, _ = launch_counts(evidence, Window(begin_ns=first.begin_ns, end_ns=evidence.window.end_ns), process.process)
    since = Window(begin_ns=last.end_ns, end_ns=evidence.window.end_ns)
    others = launch_counts(evidence, since, process.process)[1] if since.duration_ns >= UNUSED_NS else 0.0
    if graphs or others < MIN_LAUNCHES:
        return None
    line = evidence.own_line(first.stack_hash)
    return _finding(
        process,
        window=Window(begin_ns=first.begin_ns, end_ns=evidence.window.end_ns),
        summary=f"{process.name} [{process.pid}] made {len(graphs_made)} CUDA graphs{f' in {line}' if line else ''} "
        "and "
        f"launched none of them in {format_ns(since.duration_ns)}, but {format_count(others)} kernels one by one",
        link=Link(
            text=f"{first.name} succeeded, and no graph was launched afterwards",
            seen_ns=since.duration_ns,
            structure="exact counts of launches of graphs and of kernels",
            order="all launches counted came after the last graph was made",
        ),
        evidence={"graphs made": len(graphs_made), "graph launches": 0, "other launches": round(others)},
    )


def _stopped_finding(evidence: Evidence, process: Process) -> Finding | None:
    """A process that launched graphs at a steady rate, then none or far fewer, and more single kernels than before."""
    if not launch_counts(evidence, evidence.window, process.process)[0]:
        return None
    pieces = _pieces(evidence.window)
    length_s = pieces[0].duration_ns / SECOND_NS if pieces else 1.0
    counts = [(piece, *launch_counts(evidence, piece, process.process)) for piece in pieces]
    rates = [(piece, graphs / length_s, others / length_s) for piece, graphs, others in counts]
    least = math.ceil(STOPPED_NS / SECOND_NS / length_s)
    if len(rates) < least:
        return None
    steady = sorted(graphs for _, graphs, _ in rates)[-least]  # for `least` pieces at least this rate
    used = [index for index, (_, graphs, _) in enumerate(rates) if graphs > MAX_RATE_RATIO * steady]
    end = used[-1] + 1 if used else len(rates)
    before, after = [rates[index] for index in used], rates[end + 1 :]  # the second in which they stopped holds both
    if steady < MIN_RATE or min(len(before), len(after)) < least:
        return None
    stopped = Window(begin_ns=rates[end][0].begin_ns, end_ns=evidence.window.end_ns)
    baseline = sum(rates[2] for rates in before) / len(before)
    now = sum(rates[2] for rates in after) / len(after)
    if now * len(after) * length_s < MIN_LAUNCHES or now < MIN_TIMES_LAUNCHES * max(baseline, 1):
        return None
    graphs, graphs_after = (sum(rates[1] for rates in part) / len(part) for part in (before, after))
    fewer = f"{format_number(graphs_after, 2)} per second" if graphs_after else "none"
    return _finding(
        process,
        window=stopped,
        summary=f"{process.name} [{process.pid}] launched {format_number(graphs)} CUDA graphs per second, and has "
        f"launched {fewer} for {format_ns(stopped.duration_ns)}: it launches {format_count(now)} kernels per second "
        f"one by one (before: {format_count(baseline)})",
        link=Link(
            text="the kernels of the graphs are launched one by one",
            seen_ns=stopped.duration_ns,
            structure="exact counts of launches of graphs and of kernels, second by second",
            order="the kernels became more when the graphs became fewer",
        ),
        evidence={
            "graphs per second before": round(graphs, 2),
            "graphs per second": round(graphs_after, 2),
            "kernels per second": round(now),
        },
    )


def _pieces(window: Window) -> list[Window]:
    """Windows of whole seconds, each longer than one where there would be too many."""
    length = max(-(-window.duration_ns // _MAX_PIECES // SECOND_NS), 1) * SECOND_NS
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
    find_events=find_events,
)
