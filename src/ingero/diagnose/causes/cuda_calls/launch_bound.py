"""The host launches kernels more slowly than the GPU executes them."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.call_growth import INSIDE, CallGrowth, claim_inside_calls, grown_calls
from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, Finding, Fix, Part
from ingero.ops import Kind

CAUSE = "launch-bound"
_CAUSES_INSIDE_LAUNCHES = (  # they slow everything that touches memory, including launches
    "memory-pressure",
    "major-page-faults",
)


def explain(case: Case) -> Iterator[Finding]:
    """Launches that are slower or more than in the baseline, where the GPU waited for them."""
    grown = grown_calls(case, Kind.LAUNCH)
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
        evidence={"launches per step": round(grown.count, 1), "baseline": round(grown.baseline_count, 1)},
    )


def _claims(case: Case, grown: CallGrowth) -> dict[Bucket, int]:
    """Lost time during launching, and before a step's first launch the time of one launch."""
    if case.is_of_steps:
        return claim_inside_calls(case, (Part.IDLE, Part.LAUNCH), grown, already_claimed_by=_CAUSES_INSIDE_LAUNCHES)
    enqueuing = claim_inside_calls(case, (Part.LAUNCH,), grown, already_claimed_by=_CAUSES_INSIDE_LAUNCHES)
    if not enqueuing:
        return {}
    first_ns = grown.grown_ns / max(1.0, *(change.count for change in grown.changes))
    return enqueuing | case.claimable((Part.IDLE,), INSIDE, first_ns)


RULE = Rule(
    cause=CAUSE,
    title="kernels were launched too slowly for the GPU",
    order=55,
    needs=("sync_intervals", "op_stats", "launches", "launch_times"),
    shows="exact counts and sums of launches per step, and checkpoints of their times within the step",
    limits="time in the driver itself cannot be distinguished; for a loop that never pauses it is unknown whether "
    "its launches are slow or wait for room in the queue",
    explain=explain,
)
