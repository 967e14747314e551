"""Copies between host and device took the time."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.calls import Growth, growth
from ingero.diagnose.cases import Case
from ingero.diagnose.copies import Way, is_pageable, way_of
from ingero.diagnose.excess import DEVICE
from ingero.diagnose.model import Finding, Fix, Part
from ingero.diagnose.rule import Rule
from ingero.ops import Kind
from ingero.units import format_bytes, format_ns

CAUSE = "memcpy-bound"
MIN_TRANSFER = 0.5  # of the device's lost time
_BLOCKS_NS_PER_BYTE = 1 / 100  # an enqueue alone is faster than 100 GB/s; slower, the call waited for its bytes
_SLOWEST_NS_PER_BYTE = 4  # 0.25 GB/s; a copy that takes longer waits for the work before it, not for its bytes
_CALL_NS = 20_000  # that a copy of nothing takes


def find(case: Case) -> Iterator[Finding]:
    """Copies that block until their bytes have moved, where moving them is most of what was lost."""
    grown = growth(case, Kind.COPY)
    if not grown:
        return
    blocking = Growth(tuple(one for one in grown.changes if _blocks(one.ns, one.size_bytes)), grown.epochs)
    lost = case.total((Part.DEVICE,), (DEVICE,)) + case.total((Part.EMPTY, Part.ENQUEUE), ("run", "sleep"))
    moving_ns = min(blocking.grown_ns, _most_ns(blocking))
    if not blocking.changes or moving_ns < MIN_TRANSFER * lost:
        return
    claims = case.take((Part.DEVICE, Part.EMPTY, Part.ENQUEUE), (DEVICE, "run", "sleep"), moving_ns)
    if not claims:
        return
    one = blocking.largest
    way, from_pageable = way_of(case, one), is_pageable(case, one)
    lost = sum(claims.values())
    speed = one.size_bytes / max(one.ns, 1) * 1e9
    usual = one.usual_bytes / max(one.usual_ns, 1) * 1e9
    yield Finding(
        cause=CAUSE,
        resource="copies",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} copying{_words(way, from_pageable=from_pageable)}: "
        f"{one.totals.name} {format_ns(int(one.ns))} per step for {format_bytes(int(one.size_bytes))}, "
        f"{format_bytes(int(speed))}/s{f' (usually {format_bytes(int(usual))}/s)' if usual else ''}",
        claims=claims,
        line=case.line_of(one),
        chain=(
            blocking.link(
                text=f"{one.totals.name} did not return before its bytes had moved",
                structure="the copy is a drain of its own lane",
                order="the next launches came after it",
            ),
        ),
        fixes=_fixes(way),
        evidence={
            "bytes per second": int(speed),
            "usually": int(usual),
            "direction": way.value or None,
            "pageable": from_pageable or None,
        },
    )


def _words(way: Way, *, from_pageable: bool) -> str:
    kind = " memory that is not pinned" if from_pageable else ""
    if way is Way.TO_DEVICE:
        return f" from{kind or ' host'} to device"
    if way is Way.TO_HOST:
        return f" from device to{kind or ' host'}"
    return f" with{kind}" if kind else ""


def _fixes(way: Way) -> tuple[Fix, ...]:
    """What makes such copies faster, and what lets the host go on meanwhile."""
    link = Fix(text="look at the link", command="nvidia-smi -q | grep -A9 'PCIe Generation'")
    if way is Way.TO_HOST:
        return (
            Fix(
                text="copy into pinned memory without waiting, and read it a step later",
                command="host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True); host.copy_(x, non_blocking=True)",
            ),
            Fix(text="or copy less, or less often: reduce on the device first"),
            link,
        )
    return (
        Fix(text="pinned memory", command="DataLoader(pin_memory=True)"),
        Fix(text="asynchronous copies", command="x.to('cuda', non_blocking=True)"),
        link,
    )


def _most_ns(copies: Growth) -> float:
    """What moving these bytes can take at most."""
    each = (one.size_bytes * _SLOWEST_NS_PER_BYTE + one.count * _CALL_NS for one in copies.changes)
    return sum(each) * copies.epochs


def _blocks(ns: float, size_bytes: float) -> bool:
    return size_bytes > 0 and ns > size_bytes * _BLOCKS_NS_PER_BYTE


RULE = Rule(
    cause=CAUSE,
    title="copies between host and device took the time",
    order=58,
    needs=("epochs", "op_stats", "copies"),
    shows="time and bytes of copies that block, their direction, and their bandwidth against the reference",
    limits="a copy of megabytes that waits for a device that became slower looks like a slow copy; of copies that do "
    "not block only the size is known: a slow one looks like a slower device; that memory is "
    "not pinned is told of asynchronous copies that block, and of processes that were seen to begin and have pinned "
    "none; else it is not known",
    find=find,
)
