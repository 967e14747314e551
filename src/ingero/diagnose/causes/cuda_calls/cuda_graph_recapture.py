"""CUDA graphs are captured repeatedly instead of being launched again."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.call_growth import INSIDE
from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cuda_calls.graph_captures import Capture, captures
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, Finding, Fix, Link, Part
from ingero.store.arrays.spans import length_ns
from ingero.units import format_number

CAUSE = "cuda-graph-recapture"
MIN_CAPTURES = 3  # a program captures one graph for each of a few shapes


def explain(case: Case) -> Iterator[Finding]:
    """Time in captures and instantiations beyond that of the baseline."""
    captures_made, baseline_captures = (
        [capture for window in windows for capture in captures(case.evidence, window, case.process.process)]
        for windows in (case.time_ranges, case.baseline_windows)
    )
    scale = length_ns(case.time_ranges) / max(length_ns(case.baseline_windows), 1)
    expected = sum(capture.duration_ns for capture in baseline_captures) * scale
    cost = sum(capture.duration_ns for capture in captures_made)
    if len(captures_made) < MIN_CAPTURES or cost <= expected:
        return
    claims = case.claimable((Part.IDLE, Part.LAUNCH), INSIDE, cost - expected)
    if claims:
        yield _finding(case, captures_made, int(expected), len(baseline_captures) * scale, claims)


def _finding(
    case: Case, captures_made: list[Capture], expected_ns: int, baseline: float, claims: dict[Bucket, int]
) -> Finding:
    cost = sum(capture.duration_ns for capture in captures_made)
    line = next((line for capture in captures_made if (line := case.evidence.own_line(capture.begin.stack_hash))), None)
    per_second = len(captures_made) * 1e9 / max(length_ns(case.time_ranges), 1)
    place = f" in {line}" if line else ""
    return Finding(
        cause=CAUSE,
        resource="cuda graph",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(sum(claims.values()))} capturing CUDA graphs {len(captures_made)} times"
        f" ({format_number(per_second)} per second){place}",
        claims=claims,
        line=line,
        chain=(
            Link(
                text="the GPU got nothing to do while the host captured and instantiated a graph",
                seen_ns=cost,
                expected_ns=expected_ns,
                structure="from each begin of a capture to its end, and the instantiation after it, on one thread",
                order="what is captured runs only when the graph is launched afterwards",
            ),
        ),
        fixes=(
            Fix(text="capture once per shape and keep the graphs; pad batches to a few shapes"),
            Fix(text="show what recompiles", command="TORCH_LOGS=recompiles,cudagraphs"),
        ),
        evidence={"captures": len(captures_made), "baseline": round(baseline, 1), "time in captures (ns)": cost},
    )


RULE = Rule(
    cause=CAUSE,
    title="CUDA graphs were captured repeatedly",
    order=47,
    needs=("sync_intervals", "op_stats", "events"),
    shows="begin and end of each capture and the instantiation after it, against the baseline, with the line",
    limits="a capture that ends on a thread other than the one that began it is not followed; more than 100 captures "
    "per second are recorded in part",
    explain=explain,
)
