"""Allocating and freeing device memory took the time."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.calls import claim, growth
from ingero.diagnose.cases import Case
from ingero.diagnose.model import Finding, FindingKind, Fix, Part
from ingero.diagnose.rule import Rule
from ingero.ops import Kind

CAUSE = "allocation-churn"
_EACH_STEP = 0.5  # calls: a framework's cache needs none once it has seen every shape
_RETRIES = ("allocator-retry", "kv-cache-pressure")


def find(case: Case) -> Iterator[Finding]:
    """Allocations that come more often or take longer, on the critical path."""
    grown = growth(case, Kind.ALLOC | Kind.FREE)
    claims = claim(case, (Part.IDLE, Part.LAUNCH), grown, told_by=_RETRIES) if grown else {}
    if not grown or not claims:
        return
    lost = sum(claims.values())
    yield Finding(
        cause=CAUSE,
        resource="gpu memory",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} allocating GPU memory: {grown.text}",
        claims=claims,
        is_apart=case.kind is FindingKind.BOTTLENECK and grown.count >= _EACH_STEP,
        line=case.line_of(grown.largest),
        chain=(grown.link(order="the allocation returned before the launch that uses it"),),
        fixes=(
            Fix(
                text="let the caching allocator keep its blocks: no empty_cache() in the loop, fewer shapes",
                command="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            ),
        ),
        evidence={"calls per step": round(grown.count, 2), "baseline": round(grown.usual_count, 2)},
    )


RULE = Rule(
    cause=CAUSE,
    title="time was lost allocating GPU memory",
    order=50,
    needs=("sync_intervals", "op_stats", "allocation_times"),
    shows="exact counts and sums of allocations and frees per step against the baseline",
    limits="allocations from a framework's own cache make no driver call and are not visible",
    find=find,
)
