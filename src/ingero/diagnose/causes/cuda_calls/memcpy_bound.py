"""Copies between host and GPU took the time."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.call_growth import Growth, growth
from ingero.diagnose.cases.case import Case, OpChange
from ingero.diagnose.causes.cuda_calls.copy_direction import (
    LINK,
    Moved,
    Pageable,
    Way,
    moved_in_case,
    moved_usually,
    pageable_by,
    slowed_ns,
)
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, Finding, Fix, Part
from ingero.diagnose.lost_time.buckets import DEVICE
from ingero.ops import Kind
from ingero.units import format_bytes, format_ns

CAUSE = "memcpy-bound"
MIN_TRANSFER = 0.5  # of the GPU's lost time
_BLOCKS_NS_PER_BYTE = 1 / 100  # an enqueue alone is faster than 100 GB/s; slower, the call waited for its bytes


def find(case: Case) -> Iterator[Finding]:
    """Copies that block until their bytes have moved, where moving them is most of what was lost.

    What a copy took beyond its bytes is a wait for the work before it, and no copying. Of copies that had nothing to
    wait for the time is theirs, however much else was lost.
    """
    grown = growth(case, Kind.COPY)
    if not grown:
        return
    blocking = Growth(tuple(one for one in grown.changes if _blocks(one.ns, one.size_bytes)), grown.sync_intervals)
    moved = {id(one): moved_in_case(case, one) for one in blocking.changes}
    lost = case.total((Part.GPU,), (DEVICE,)) + case.total((Part.IDLE, Part.LAUNCH), ("run", "sleep"))
    longer = {id(one): moved[id(one)].transfer_ns - _usual_ns(case, one) for one in blocking.changes}
    moving_ns = min(blocking.grown_ns, sum(longer.values()) * blocking.sync_intervals)
    if not blocking.changes:
        return
    parts: tuple[Part, ...] = (Part.GPU, Part.IDLE, Part.LAUNCH)
    if moving_ns < MIN_TRANSFER * lost:  # then only of what had nothing to wait for
        parts, moving_ns = (Part.GPU,), sum(slowed_ns(case, one) for one in blocking.changes)
    claims = case.take(parts, (DEVICE, "run", "sleep"), moving_ns)
    if claims:
        most = max(blocking.changes, key=lambda one: longer[id(one)])
        yield _finding(case, Growth((most,), blocking.sync_intervals), moved[id(most)], claims)


def _usual_ns(case: Case, copies: OpChange) -> float:
    return moved_usually(case, copies).transfer_ns if copies.usual_ns else 0.0


def _finding(case: Case, blocking: Growth, moved: Moved, claims: dict[Bucket, int]) -> Finding:
    largest = blocking.largest
    pageable, lost = pageable_by(case, largest), sum(claims.values())
    speed = moved.bytes / max(largest.ns, 1) * 1e9
    usual = largest.usual_bytes / max(largest.usual_ns, 1) * 1e9
    return Finding(
        cause=CAUSE,
        resource="copies",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} {_words(largest, moved.way, pageable)}: {largest.totals.name} "
        f"{format_ns(int(largest.mean_ns))} for {format_bytes(int(moved.bytes / max(largest.count, 1e-9)))}, "
        f"{format_bytes(int(speed))}/s{f' (baseline {format_bytes(int(usual))}/s)' if usual else ''}",
        claims=claims,
        line=case.line_of(largest),
        chain=(
            blocking.link(
                text=f"{largest.totals.name} did not return before its bytes had moved",
                structure="the copy is a sync of its own stream",
                order="the next launches came after it",
            ),
        ),
        fixes=_fixes(moved.way),
        evidence={
            "bytes per second": int(speed),
            "baseline": int(usual),
            "direction": moved.way.value or None,
            "pageable": pageable is not Pageable.NO or None,
            "pageable by": pageable.value or None,
        },
    )


def _words(copies: OpChange, way: Way, pageable: Pageable) -> str:
    if pageable is not Pageable.NO and "Async" in copies.totals.name:
        way_there = f", copying {way.value}" if way.value else ""
        return f"blocked in {copies.totals.name} (pageable){way_there}"
    if pageable is Pageable.NO:
        return f"copying {way.value}" if way.value else "copying"
    return {
        Way.TO_DEVICE: "copying from unpinned memory to the GPU",
        Way.TO_HOST: "copying from the GPU to unpinned memory",
        Way.UNKNOWN: "copying from or to unpinned memory",
    }[way]


def _fixes(way: Way) -> tuple[Fix, ...]:
    """What makes such copies faster, and what lets the host go on meanwhile."""
    if way is Way.TO_HOST:
        return (
            Fix(
                text="copy asynchronously into pinned memory, and read it one step later",
                command="host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True); host.copy_(x, non_blocking=True)",
            ),
            Fix(text="or copy less: reduce on the GPU first"),
            LINK,
        )
    return (
        Fix(text="use pinned memory", command="DataLoader(pin_memory=True)"),
        Fix(text="use asynchronous copies", command="x.to('cuda', non_blocking=True)"),
        LINK,
    )


def _blocks(ns: float, size_bytes: float) -> bool:
    return size_bytes > 0 and ns > size_bytes * _BLOCKS_NS_PER_BYTE


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
    find=find,
)
