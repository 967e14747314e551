"""Time lost allocating and freeing GPU memory, or pinned host memory."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.call_growth import CallGrowth, claim_in_waits, claimed_ns, grown_calls
from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Finding, FindingKind, Fix
from ingero.ops import BY_CODE, Kind, MemoryKind, Source

CAUSE = "allocation-churn"
_MIN_CALLS_PER_STEP = 0.5  # a framework's cache needs no calls once it has seen every shape
_RETRY_CAUSES = ("allocator-retry", "kv-cache-pressure")
_KEEP_BLOCKS = Fix(
    text="let the caching allocator keep its blocks: no empty_cache() in the loop, fewer shapes",
    command="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
)
_KEEP_BUFFER = Fix(
    text="pin a buffer once, before the loop, and copy each batch into it: pinning locks each page",
    command="DataLoader(pin_memory=True)  # no pin_memory() in the loop",
)


def explain(case: Case) -> Iterator[Finding]:
    """Allocations on the critical path that are more frequent or take longer."""
    grown = grown_calls(case, Kind.ALLOC | Kind.FREE)
    if not grown:
        return
    claims = claim_in_waits(case, grown, max(grown.grown_ns - claimed_ns(case, _RETRY_CAUSES), 0))
    if not claims:
        return
    lost, is_pinned = sum(claims.values()), _is_pinned(grown)
    memory = "pinned host memory" if is_pinned else "GPU memory"
    yield Finding(
        cause=CAUSE,
        resource="host memory" if is_pinned else "gpu memory",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} allocating {memory}: {grown.text}",
        claims=claims,
        is_outside_loop=case.kind is FindingKind.BOTTLENECK and grown.count >= _MIN_CALLS_PER_STEP,
        line=case.line_of(grown.largest),
        chain=(grown.link(order="the allocation returned before the launch that uses it"),),
        fixes=(_KEEP_BUFFER if is_pinned else _KEEP_BLOCKS,),
        evidence={"calls per step": round(grown.count, 2), "baseline": round(grown.baseline_count, 2)},
    )


def _is_pinned(grown: CallGrowth) -> bool:
    """Whether the largest part is pinned host memory, whose pages the driver locks."""
    totals = grown.largest.totals
    op = BY_CODE.get((Source(totals.source), totals.op))
    return op is not None and op.memory is MemoryKind.PINNED


RULE = Rule(
    cause=CAUSE,
    title="time was lost allocating GPU memory or pinned host memory",
    order=50,
    needs=("sync_intervals", "op_stats", "allocation_times"),
    shows="exact counts and sums of allocations and frees per step against the baseline",
    limits="allocations from a framework's own cache make no driver call and are not visible",
    explain=explain,
)
