"""Copies between host and device took the time."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.calls import Growth, growth
from ingero.diagnose.cases import Case
from ingero.diagnose.excess import DEVICE
from ingero.diagnose.model import Finding, Fix, Part
from ingero.diagnose.rule import Rule
from ingero.ops import Kind
from ingero.units import format_bytes, format_ns

CAUSE = "memcpy-bound"
MIN_TRANSFER = 0.5  # of the device's lost time
_BLOCKS_NS_PER_BYTE = 1 / 100  # an enqueue alone is faster than 100 GB/s; slower, the call waited for its bytes


def find(case: Case) -> Iterator[Finding]:
    """Copies that block until their bytes have moved, where moving them is most of what was lost."""
    grown = growth(case, Kind.COPY)
    if not grown:
        return
    blocking = Growth(tuple(one for one in grown.changes if _blocks(one.ns, one.size_bytes)), grown.epochs)
    lost = case.total((Part.DEVICE,), (DEVICE,)) + case.total((Part.EMPTY, Part.ENQUEUE), ("run", "sleep"))
    if not blocking.changes or blocking.grown_ns < MIN_TRANSFER * lost:
        return
    claims = case.take((Part.DEVICE, Part.EMPTY, Part.ENQUEUE), (DEVICE, "run", "sleep"), blocking.grown_ns)
    if not claims:
        return
    one = blocking.largest
    lost = sum(claims.values())
    speed = one.size_bytes / max(one.ns, 1) * 1e9
    usual = one.usual_bytes / max(one.usual_ns, 1) * 1e9
    yield Finding(
        cause=CAUSE,
        resource="copies",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} copying: {one.totals.name} {format_ns(int(one.ns))} per step for "
        f"{format_bytes(int(one.size_bytes))}, {format_bytes(int(speed))}/s (usually {format_bytes(int(usual))}/s)",
        claims=claims,
        line=case.line_of(one),
        chain=(
            blocking.link(
                text=f"{one.totals.name} did not return before its bytes had moved",
                structure="the copy is a drain of its own lane",
                order="the next launches came after it",
            ),
        ),
        fixes=(
            Fix(text="pinned memory", command="DataLoader(pin_memory=True)"),
            Fix(text="asynchronous copies", command="x.to('cuda', non_blocking=True)"),
            Fix(text="look at the link", command="nvidia-smi -q | grep -A9 'PCIe Generation'"),
        ),
        evidence={"bytes per second": int(speed), "usually": int(usual)},
    )


def _blocks(ns: float, size_bytes: float) -> bool:
    return size_bytes > 0 and ns > size_bytes * _BLOCKS_NS_PER_BYTE


RULE = Rule(
    cause=CAUSE,
    title="copies between host and device took the time",
    order=58,
    needs=("epochs", "op_stats"),
    shows="time and bytes of copies that block, and their bandwidth against the reference",
    limits="of copies that do not block only the size is known: a slow one looks like a slower device",
    find=find,
)
