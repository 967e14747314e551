"""Nodes compared: each says what a comparison needs of its own recording, and the rest is computed here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

import msgspec

from ingero.diagnose.comparison.compare import Comparison, compare_sides
from ingero.diagnose.comparison.side import Side
from ingero.errors import IngeroError
from ingero.fleet.client import NodeClient, NodeError
from ingero.fleet.clocks import Clock
from ingero.fleet.fan_out import FleetAnswer, Missing
from ingero.fleet.names import names_of
from ingero.fleet.node_lists import Node
from ingero.serve.structured.row_lines import Identity

_MOST = 2**63
_MOST_CHARACTERS = 8 << 10


class ComparisonError(IngeroError):
    """There is nothing to compare with."""


class NodeSide(msgspec.Struct, frozen=True, kw_only=True):
    """What a node answers."""

    node: Identity
    side: Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A node against the reference."""

    name: str
    node: Node
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetComparison:
    """reference: the first node, which the others are compared with. nodes: slowest first."""

    reference: str
    nodes: tuple[Compared, ...]
    missing: tuple[Missing, ...]
    notes: tuple[str, ...]
    clocks: Mapping[str, Clock]


async def ask_side(client: NodeClient, *, since: str) -> NodeSide:
    """What a node knows of the last `since` for a comparison.

    Raises:
        NodeError: there is no answer, or it is of numbers that cannot be.
    """
    path = f"/api/v2/side?{urlencode({'since': since})}" if since else "/api/v2/side"
    found = await client.json(path, NodeSide)
    _check(msgspec.to_builtins(found.side))
    try:
        compare_sides(found.side, found.side)
    except (ArithmeticError, IndexError, ValueError) as error:
        raise NodeError("its answer is malformed: its numbers are inconsistent") from error
    return found


def fleet_comparison(found: FleetAnswer[NodeSide], nodes: Sequence[Node]) -> FleetComparison:
    """The first of the nodes against each of the others.

    Raises:
        ComparisonError: it, or all others, did not answer.
    """
    names = names_of([(one.node, one.answer.node) for one in found.answered])
    missing = (*found.missing, *names.repeated)
    side_of = {one.node: one.answer.side for one in found.answered if one.node in names.label}
    reason = next((one for one in missing if one.node == nodes[0] or not set(nodes[1:]) & set(side_of)), None)
    if nodes[0] not in side_of or len(side_of) < 2:
        why = f": {reason.reason}" if reason else ""
        raise ComparisonError(
            f"{reason.node if reason else nodes[0]} is missing, and there is nothing to compare{why}",
            hint=(reason.hint if reason else "")
            or "name two nodes that answer; the first is what others are compared with",
        )
    first = side_of[nodes[0]]
    compared = [
        Compared(name=names.label[node], node=node, comparison=compare_sides(first, side))
        for node, side in side_of.items()
        if node != nodes[0]
    ]
    return FleetComparison(
        reference=names.label[nodes[0]],
        nodes=tuple(sorted(compared, key=_slowest_first)),
        missing=missing,
        notes=names.notes,
        clocks={names.label[one.node]: one.clock for one in found.answered if one.clock and one.node in names.label},
    )


def _slowest_first(one: Compared) -> tuple[bool, float, str]:
    change = one.comparison.change_ratio
    return (change is None, -(change or 0.0), one.name)


def _check(value: object) -> None:
    """Raises NodeError where a number or a text is none of a recording."""
    if isinstance(value, dict):
        _check(list(value))
        _check(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            _check(one)
    elif isinstance(value, str):
        if len(value) > _MOST_CHARACTERS:
            raise NodeError("its answer is malformed: a name is too long")
    elif isinstance(value, int | float) and not (math.isfinite(value) and 0 <= value < _MOST):
        raise NodeError("its answer is malformed: a number is too large")
