"""Which lines of a process's own code the recorded time was spent at, per call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ingero.serve.stack_lines import waiting_text
from ingero.store.call_stacks import CallStack
from ingero.store.records import OpTotals, StackTime
from ingero.store.waiters import WaitedCalls
from ingero.units import format_count, format_ns

_TOP_LINES = 8
_NO_LINE = "a thread without Python frames"
_NOT_READ = "a line of Python that was not read"
_NO_STACK = "a place that is not known: no stack was stored"


@dataclass(frozen=True, slots=True)
class LineCost:
    """The recorded calls of one operation that one line made. place: as shown."""

    name: str
    place: str
    ns: int
    recorded: int


def line_costs(
    times: Sequence[StackTime], stacks: Mapping[int, CallStack], waited: Sequence[WaitedCalls] = ()
) -> list[LineCost]:
    """Recorded time by (call, line of the user's own code), most first.

    waited: of the same calls those from threads without Python frames that another thread waited for.
    """
    spent: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    waits: dict[tuple[int, int, int], list[WaitedCalls]] = defaultdict(list)
    for wait in waited:
        waits[wait.source, wait.op, wait.stack_hash].append(wait)
    for one in times:
        stack, left_ns, left = stacks.get(one.stack_hash), one.sum_ns, one.count
        for wait in waits.get((one.source, one.op, one.stack_hash), ()):
            text = waiting_text(wait.waiter, stacks.get(wait.waiter.stack_hash))
            if text:
                _add(spent[one.name, text], wait.sum_ns, wait.count)
                left_ns, left = left_ns - wait.sum_ns, left - wait.count
        if left:
            _add(spent[one.name, _place(stack)], left_ns, left)
    costs = [LineCost(name, place, ns, recorded) for (name, place), (ns, recorded) in spent.items()]
    return sorted(costs, key=lambda cost: -cost.ns)


def _add(total: list[int], ns: int, count: int) -> None:
    total[0] += ns
    total[1] += count


def _place(stack: CallStack | None) -> str:
    if stack is None:
        return _NO_STACK
    if stack.own:
        return stack.own.short
    without = _NO_LINE if stack.is_frameless else _NOT_READ
    return f"{without}, in {stack.issuer.text}" if stack.issuer else without


def line_cost_lines(costs: Sequence[LineCost], totals: Sequence[OpTotals]) -> Iterator[str]:
    """The dearest lines, and of how much of the time and of the calls they are."""
    if not any(cost.place != _NO_STACK for cost in costs):
        return
    counts = {total.name: total.count for total in totals}
    recorded_ns, all_ns = sum(cost.ns for cost in costs), sum(total.sum_ns for total in totals)
    recorded, calls = sum(cost.recorded for cost in costs), sum(counts.values())
    yield (
        f"  lines, from the recorded calls alone: {format_ns(recorded_ns)} of {format_ns(all_ns)}, "
        f"{format_count(recorded)} of {format_count(calls)} calls:"
    )
    for cost in costs[:_TOP_LINES]:
        of_all = f" of {format_count(counts[cost.name])}" if cost.name in counts else ""
        share = f"{format_count(cost.recorded)}{of_all} calls recorded"
        yield f"    {cost.name} {format_ns(cost.ns)} at {cost.place} ({share})"
    rest = costs[_TOP_LINES:]
    if rest:
        yield f"    {format_count(len(rest))} other lines {format_ns(sum(cost.ns for cost in rest))}"
