"""Lines about the start of events on many nodes, earliest first, and about those whose order is not known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ingero.fleet.node_lists import listed
from ingero.units import format_moment, format_ns

_MAX_IN_ORDER = 20
_SHORT_NS = 1  # times are shown to the millisecond


class Began(NamedTuple):
    """The start of an event (unix ns, uncertain by bound_ns). is_known: certainly after all earlier ones."""

    start_ns: int
    bound_ns: int
    node: str
    what: str
    is_known: bool


def order_lines(by: str, began: Sequence[Began], others: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The lines. by: the clock of the times. others: (node, reason) of events whose order is not known."""
    if began:
        yield f"By {by} they began:"
    for event in began[:_MAX_IN_ORDER]:
        start = f"{format_moment(event.start_ns, of_ns=_SHORT_NS)} to {format_ns(event.bound_ns)}"
        unknown = "" if event.is_known else ", order not known"
        yield f"  {start}  [{event.node}] {event.what}{unknown}"
    if (more := len(began) - _MAX_IN_ORDER) > 0:
        yield f"  and {more:,} later (--json has all)"
    by_reason: dict[str, list[str]] = {}
    for node, reason in others:
        by_reason.setdefault(reason, []).append(node)
    for reason, nodes in by_reason.items():
        yield f"order not known of {listed(dict.fromkeys(nodes), most=8)}: {reason}"
