"""CUDA graphs are captured again and again instead of being launched again."""

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
MIN_CAPTURES = 3  # one for each of a few shapes is how graphs are made


def find(case: Case) -> Iterator[Finding]:
    """The time in captures and instantiations that the reference does not have."""
    made, usual = (
        [one for window in windows for one in captures(case.evidence, window, case.process.process)]
        for windows in (case.time_ranges, case.baselines)
    )
    scale = length_ns(case.time_ranges) / max(length_ns(case.baselines), 1)
    expected = sum(one.duration_ns for one in usual) * scale
    cost = sum(one.duration_ns for one in made)
    if len(made) < MIN_CAPTURES or cost <= expected:
        return
    claims = case.take((Part.IDLE, Part.LAUNCH), INSIDE, cost - expected)
    if claims:
        yield _finding(case, made, int(expected), len(usual) * scale, claims)


def _finding(case: Case, made: list[Capture], expected_ns: int, usual: float, claims: dict[Bucket, int]) -> Finding:
    cost = sum(one.duration_ns for one in made)
    line = next((line for one in made if (line := case.evidence.own_line(one.begin.stack_hash))), None)
    per_second = len(made) * 1e9 / max(length_ns(case.time_ranges), 1)
    place = f" in {line}" if line else ""
    return Finding(
        cause=CAUSE,
        resource="cuda graph",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(sum(claims.values()))} capturing CUDA graphs {len(made)} times"
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
        evidence={"captures": len(made), "baseline": round(usual, 1), "time in captures (ns)": cost},
    )


RULE = Rule(
    cause=CAUSE,
    title="CUDA graphs were captured repeatedly",
    order=47,
    needs=("sync_intervals", "op_stats", "events"),
    shows="begin and end of each capture and the instantiation after it, against the baseline, with the line",
    limits="a capture that ends on a thread other than the one that began it is not followed; more than 100 captures "
    "per second are recorded in part",
    find=find,
)
