"""Recorded time by call and line of a process's own code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingero.serve.text.stack_lines import waiting_text
from ingero.store.call_stacks import CallStack, StackBook
from ingero.store.records import OpTotals
from ingero.store.waiters import PlacedTime
from ingero.units import format_count, format_ns

_TOP_LINES = 8
_NO_LINE = "in a thread without Python frames"
_NOT_READ = "at a Python line that could not be read"
_NO_STACK = "line not known: no stack was stored"


@dataclass(frozen=True, slots=True)
class LineCost:
    """The recorded calls of one operation that one line made. place: as shown: "at train.py:12"."""

    name: str
    place: str
    ns: int
    recorded: int


def line_costs(placed: Sequence[PlacedTime], book: StackBook) -> list[LineCost]:
    """Recorded time by (call, line of the user's own code), most first."""
    spent: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for placed_time in placed:
        waiting = waiting_text(placed_time.waiter, book.of(placed_time.waiter.stack_hash)) if placed_time.waiter else ""
        total = spent[
            placed_time.time.name, f"at {waiting}" if waiting else _place(book.of(placed_time.time.stack_hash))
        ]
        total[0] += placed_time.time.sum_ns
        total[1] += placed_time.time.count
    costs = [LineCost(name, place, ns, recorded) for (name, place), (ns, recorded) in spent.items()]
    return sorted(costs, key=lambda cost: -cost.ns)


def _place(stack: CallStack | None) -> str:
    if stack is None:
        return _NO_STACK
    if stack.own:
        return f"at {stack.own.short}"
    without = _NO_LINE if stack.is_frameless else _NOT_READ
    return f"{without}, in {stack.issuer.text}" if stack.issuer else without


def line_cost_lines(costs: Sequence[LineCost], totals: Sequence[OpTotals]) -> Iterator[str]:
    """The costliest lines, and the share of time and calls that they cover."""
    if not any(cost.place != _NO_STACK for cost in costs):
        return
    counts = {total.name: total.count for total in totals}
    recorded_ns, all_ns = sum(cost.ns for cost in costs), sum(total.sum_ns for total in totals)
    recorded, calls = sum(cost.recorded for cost in costs), sum(counts.values())
    yield (
        f"  lines of code, from recorded calls only: {format_ns(recorded_ns)} of {format_ns(all_ns)}, "
        f"{format_count(recorded)} of {format_count(calls)} calls:"
    )
    for cost in costs[:_TOP_LINES]:
        of_all = f" of {format_count(counts[cost.name])}" if cost.name in counts else ""
        share = f"{format_count(cost.recorded)}{of_all} calls recorded"
        where = f"({cost.place}; {share})" if cost.place == _NO_STACK else f"{cost.place} ({share})"
        yield f"    {cost.name} {format_ns(cost.ns)} {where}"
    rest = costs[_TOP_LINES:]
    if rest:
        yield f"    {format_count(len(rest))} other lines {format_ns(sum(cost.ns for cost in rest))}"
