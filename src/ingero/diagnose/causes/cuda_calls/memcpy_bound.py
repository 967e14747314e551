"""Time lost in copies between host and GPU."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.call_growth import CallGrowth, grown_calls
from ingero.diagnose.cases.case import Case, OpChange
from ingero.diagnose.causes.cuda_calls.copy_direction import (
    LINK_FIX,
    CopiedBytes,
    CopyDirection,
    Pageable,
    copied_in_baseline,
    copied_in_case,
    how_pageable,
    slower_copy_ns,
)
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, Finding, Fix, Part
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION
from ingero.ops import Kind
from ingero.units import format_bytes, format_ns

CAUSE = "memcpy-bound"
MIN_TRANSFER_SHARE = 0.5  # of the GPU's lost time
_MIN_BLOCKING_NS_PER_BYTE = 1 / 100  # an enqueue alone is faster than 100 GB/s; slower, the call waited for its bytes


def explain(case: Case) -> Iterator[Finding]:
    """Copies that block until their bytes have moved, where moving them is most of the lost time.

    Time of a copy beyond its bytes is a wait for earlier work, not copying. Copies with nothing to wait for claim their
    time however much else was lost.
    """
    grown = grown_calls(case, Kind.COPY)
    if not grown:
        return
    blocking = CallGrowth(
        tuple(change for change in grown.changes if _is_blocking(change.ns, change.size_bytes)), grown.sync_intervals
    )
    copied = {id(change): copied_in_case(case, change) for change in blocking.changes}
    lost = case.total((Part.GPU,), (GPU_EXECUTION,)) + case.total((Part.IDLE, Part.LAUNCH), ("run", "sleep"))
    longer_ns = {
        id(change): copied[id(change)].transfer_ns - _baseline_transfer_ns(case, change) for change in blocking.changes
    }
    moving_ns = min(blocking.grown_ns, sum(longer_ns.values()) * blocking.sync_intervals)
    if not blocking.changes:
        return
    parts: tuple[Part, ...] = (Part.GPU, Part.IDLE, Part.LAUNCH)
    if moving_ns < MIN_TRANSFER_SHARE * lost:  # then only copies with nothing to wait for
        parts, moving_ns = (Part.GPU,), sum(slower_copy_ns(case, change) for change in blocking.changes)
    claims = case.claimable(parts, (GPU_EXECUTION, "run", "sleep"), moving_ns)
    if claims:
        worst = max(blocking.changes, key=lambda change: longer_ns[id(change)])
        yield _finding(case, CallGrowth((worst,), blocking.sync_intervals), copied[id(worst)], claims)


def _baseline_transfer_ns(case: Case, copies: OpChange) -> float:
    return copied_in_baseline(case, copies).transfer_ns if copies.baseline_ns else 0.0


def _finding(case: Case, blocking: CallGrowth, copied: CopiedBytes, claims: dict[Bucket, int]) -> Finding:
    largest = blocking.largest
    pageable, lost = how_pageable(case, largest), sum(claims.values())
    speed = copied.bytes / max(largest.ns, 1) * 1e9
    baseline = largest.baseline_bytes / max(largest.baseline_ns, 1) * 1e9
    return Finding(
        cause=CAUSE,
        resource="copies",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} {_doing_text(largest, copied.direction, pageable)}: "
        f"{largest.totals.name} "
        f"{format_ns(int(largest.mean_ns))} for {format_bytes(int(copied.bytes / max(largest.count, 1e-9)))}, "
        f"{format_bytes(int(speed))}/s{f' (baseline {format_bytes(int(baseline))}/s)' if baseline else ''}",
        claims=claims,
        line=case.line_of(largest),
        chain=(
            blocking.link(
                text=f"{largest.totals.name} did not return before its bytes had moved",
                structure="the copy is a sync of its own stream",
                order="the next launches came after it",
            ),
        ),
        fixes=_fixes(copied.direction),
        evidence={
            "bytes per second": int(speed),
            "baseline": int(baseline),
            "direction": copied.direction.value or None,
            "pageable": pageable is not Pageable.NO or None,
            "pageable by": pageable.value or None,
        },
    )


def _doing_text(copies: OpChange, direction: CopyDirection, pageable: Pageable) -> str:
    if pageable is not Pageable.NO and "Async" in copies.totals.name:
        direction_text = f", copying {direction.value}" if direction.value else ""
        return f"blocked in {copies.totals.name} (pageable){direction_text}"
    if pageable is Pageable.NO:
        return f"copying {direction.value}" if direction.value else "copying"
    return {
        CopyDirection.TO_DEVICE: "copying from unpinned memory to the GPU",
        CopyDirection.TO_HOST: "copying from the GPU to unpinned memory",
        CopyDirection.UNKNOWN: "copying from or to unpinned memory",
    }[direction]


def _fixes(direction: CopyDirection) -> tuple[Fix, ...]:
    """What makes such copies faster, or lets the host continue meanwhile."""
    if direction is CopyDirection.TO_HOST:
        return (
            Fix(
                text="copy asynchronously into pinned memory, and read it one step later",
                command="host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True); host.copy_(x, non_blocking=True)",
            ),
            Fix(text="or copy less: reduce on the GPU first"),
            LINK_FIX,
        )
    return (
        Fix(text="use pinned memory", command="DataLoader(pin_memory=True)"),
        Fix(text="use asynchronous copies", command="x.to('cuda', non_blocking=True)"),
        LINK_FIX,
    )


def _is_blocking(ns: float, size_bytes: float) -> bool:
    return size_bytes > 0 and ns > size_bytes * _MIN_BLOCKING_NS_PER_BYTE


RULE = Rule(
    cause=CAUSE,
    title="time was lost in copies between host and GPU",
    order=58,
    needs=("sync_intervals", "op_stats", "copies"),
    shows="time and bytes of copies that block, their direction, and their bandwidth against the baseline",
    limits="only bytes between host and GPU count, and only for as long as the fastest recorded copy of the case would "
    "take for them; where copies found nothing queued, the fastest in a row of them; of pageable ones that slept "
    "first, what they ran; where asynchronous pageable copies polled, only additional bytes count, because the copies "
    "may have waited; blocking copies of megabytes that all wait for a GPU that became slower look like slow copies; "
    "of copies that do not block only the size is known: a slow one looks like a slower GPU; memory is known not to be "
    "pinned where all allocations were traced, or where an asynchronous copy waited",
    explain=explain,
)
