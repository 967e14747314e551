"""Capturing or instantiating a CUDA graph failed."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.causes.cuda_calls.graph_captures import (
    GraphCall,
    call_that_broke_capture,
    graph_calls,
    is_failure,
    processes_with_graphs,
)
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Culprit, Finding, FindingKind, Fix, Link, Severity
from ingero.store.records import Process, Window

CAUSE = "cuda-graph-capture-failure"


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Processes whose graphs could not be captured or instantiated."""
    for process in processes_with_graphs(evidence):
        failed = [call for call in graph_calls(evidence, evidence.window, process.process) if is_failure(call)]
        if failed:
            yield _finding(evidence, process, failed)


def _finding(evidence: Evidence, process: Process, failed: list[GraphCall]) -> Finding:
    first = failed[0]
    breaking_call = call_that_broke_capture(evidence, process.process, first)
    line = evidence.own_line((breaking_call or first).stack_hash)
    times = f", {len(failed)} times in all" if len(failed) > 1 else ""
    because = (
        f", because {breaking_call.name} was called in the capture: {breaking_call.reason}" if breaking_call else ""
    )
    return Finding(
        cause=CAUSE,
        resource="cuda graph",
        root=str(process.pid),
        kind=FindingKind.EVENT,
        severity=Severity.MEDIUM,
        window=Window(begin_ns=first.begin_ns, end_ns=failed[-1].end_ns + 1),
        summary=f"{process.name} [{process.pid}] got no CUDA graph: {first.name} returned {first.reason}{times}"
        f"{because}{f', in {line}' if line else ''}",
        culprits=(Culprit(pid=process.pid, name=process.name),),
        line=line,
        chain=tuple(_links(first, breaking_call)),
        fixes=(
            Fix(text="keep .item(), prints, host copies and allocations of other streams out of the captured part"),
            Fix(
                text="warm up on a side stream before the capture, so that nothing is allocated or loaded in it",
                command="torch.cuda.make_graphed_callables(model, sample_args)",
            ),
        ),
        evidence={
            "failures": len(failed),
            "return code": first.ret_code,
            "broken by": breaking_call.name if breaking_call else None,
        },
    )


def _links(first: GraphCall, breaking_call: GraphCall | None) -> Iterator[Link]:
    if breaking_call:
        yield Link(
            text=f"{breaking_call.name} returned {breaking_call.reason}",
            seen_ns=breaking_call.end_ns - breaking_call.begin_ns,
            structure="its return code, between the begin and the end of the capture",
            order="it came before the capture ended",
        )
    yield Link(
        text=f"{first.name} returned {first.reason}",
        seen_ns=first.end_ns - first.begin_ns,
        structure="the return code of the call",
        order="no graph was made by it",
    )


RULE = Rule(
    cause=CAUSE,
    title="a CUDA graph could not be captured",
    order=16,
    needs=("op_stats", "events"),
    shows="the return code of the capture or instantiation, and the call inside the capture that is not permitted, "
    "with its line",
    limits="a call that breaks a capture and has no record is not named",
    find_events=find_events,
)
