"""Capturing or instantiating a CUDA graph failed."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.causes.cuda_calls.graph_captures import GraphCall, breaker, graph_calls, is_failure, users
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Culprit, Finding, FindingKind, Fix, Link, Severity
from ingero.store.records import Process, Window

CAUSE = "cuda-graph-capture-failure"


def watch(evidence: Evidence) -> Iterator[Finding]:
    """Processes whose graphs did not come about."""
    for process in users(evidence):
        failed = [one for one in graph_calls(evidence, evidence.window, process.process) if is_failure(one)]
        if failed:
            yield _finding(evidence, process, failed)


def _finding(evidence: Evidence, process: Process, failed: list[GraphCall]) -> Finding:
    first = failed[0]
    broke = breaker(evidence, process.process, first)
    line = evidence.own_line((broke or first).stack_hash)
    times = f", {len(failed)} times in all" if len(failed) > 1 else ""
    because = f", because {broke.name} was called in the capture: {broke.reason}" if broke else ""
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
        chain=tuple(_links(first, broke)),
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
            "broken by": broke.name if broke else None,
        },
    )


def _links(first: GraphCall, broke: GraphCall | None) -> Iterator[Link]:
    if broke:
        yield Link(
            text=f"{broke.name} returned {broke.reason}",
            seen_ns=broke.end_ns - broke.begin_ns,
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
    watch=watch,
)
