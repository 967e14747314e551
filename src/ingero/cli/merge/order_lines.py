"""When something began on each of many nodes, earliest first, and of which the order is not known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ingero.fleet.node_lists import listed
from ingero.units import format_moment, format_ns

_MOST_IN_ORDER = 20
_SHORT_NS = 1  # moments to the millisecond


class Began(NamedTuple):
    """Unix ns, to bound_ns. is_known: after all those before it."""

    start_ns: int
    bound_ns: int
    node: str
    what: str
    is_known: bool


def order_lines(by: str, began: Sequence[Began], others: Iterable[tuple[str, str]]) -> Iterator[str]:
    """by: whose clock that is. others: nodes of whose things that is not known, with the reason."""
    if began:
        yield f"By {by} they began:"
    for one in began[:_MOST_IN_ORDER]:
        moment = f"{format_moment(one.start_ns, of_ns=_SHORT_NS)} to {format_ns(one.bound_ns)}"
        unknown = "" if one.is_known else ", order not known"
        yield f"  {moment}  [{one.node}] {one.what}{unknown}"
    if (more := len(began) - _MOST_IN_ORDER) > 0:
        yield f"  and {more:,} later (--json has all)"
    by_reason: dict[str, list[str]] = {}
    for node, reason in others:
        by_reason.setdefault(reason, []).append(node)
    for reason, nodes in by_reason.items():
        yield f"order not known of {listed(dict.fromkeys(nodes), most=8)}: {reason}"
