"""The host issues launches more slowly than the GPU works them off."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.call_growth import INSIDE, Growth, claim, growth
from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, Finding, Fix, Part
from ingero.ops import Kind

CAUSE = "launch-bound"
_INSIDE_LAUNCHES = ("memory-pressure", "major-page-faults")  # they slow whatever touches memory, launches among it


def find(case: Case) -> Iterator[Finding]:
    """Launches that take longer or are more, where the GPU waited for them."""
    grown = growth(case, Kind.LAUNCH)
    claims = _claims(case, grown) if grown else {}
    if not grown or not claims:
        return
    lost = sum(claims.values())
    yield Finding(
        cause=CAUSE,
        resource="launches",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} because kernels were launched too slowly to keep the GPU busy: "
        f"{grown.text}",
        claims=claims,
        line=case.line_of(grown.largest),
        chain=(
            grown.link(
                text="the GPU had finished its queue before the next launch",
                structure="the times of every eighth of the launches against the baseline",
                order="each launch returned before the GPU could begin with it",
            ),
        ),
        fixes=(
            Fix(text="launch fewer, larger kernels", command="torch.compile(model, mode='reduce-overhead')"),
            Fix(text="or use CUDA graphs for the repeated part"),
        ),
        evidence={"launches per step": round(grown.count, 1), "baseline": round(grown.usual_count, 1)},
    )


def _claims(case: Case, grown: Growth) -> dict[Bucket, int]:
    """Of the time while it was enqueued, and of that before the first launch of a step what one launch takes."""
    if case.is_of_steps:
        return claim(case, (Part.IDLE, Part.LAUNCH), grown, told_by=_INSIDE_LAUNCHES)
    enqueuing = claim(case, (Part.LAUNCH,), grown, told_by=_INSIDE_LAUNCHES)
    if not enqueuing:
        return {}
    first_ns = grown.grown_ns / max(1.0, *(one.count for one in grown.changes))
    return enqueuing | case.take((Part.IDLE,), INSIDE, first_ns)


RULE = Rule(
    cause=CAUSE,
    title="kernels were launched too slowly for the GPU",
    order=55,
    needs=("sync_intervals", "op_stats", "launches", "launch_times"),
    shows="exact counts and sums of launches per step, and checkpoints of their times within the step",
    limits="time in the driver itself cannot be distinguished; for a loop that never pauses it is unknown whether "
    "its launches are slow or wait for room in the queue",
    find=find,
)
