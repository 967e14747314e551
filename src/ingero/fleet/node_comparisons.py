"""Compares nodes: each reduces its own recording to one side of a comparison; the rest is computed here."""

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
_MAX_CHARACTERS = 8 << 10


class ComparisonError(IngeroError):
    """There is no node to compare with."""


class NodeSide(msgspec.Struct, frozen=True, kw_only=True):
    """A node's answer: its side of a comparison."""

    node: Identity
    side: Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A node compared with the reference node."""

    name: str
    node: Node
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetComparison:
    """Nodes compared with one of them. reference: the first node. nodes: the others, slowest first."""

    reference: str
    nodes: tuple[Compared, ...]
    missing: tuple[Missing, ...]
    notes: tuple[str, ...]
    clocks: Mapping[str, Clock]


async def ask_side(client: NodeClient, *, since: str) -> NodeSide:
    """Ask a node for its side of a comparison, over the last `since`.

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
    """Compare each other node with the first one.

    Raises:
        ComparisonError: it, or all others, did not answer.
    """
    names = names_of([(reply.node, reply.answer.node) for reply in found.answered])
    missing = (*found.missing, *names.repeated)
    side_of = {reply.node: reply.answer.side for reply in found.answered if reply.node in names.label}
    reason = next(
        (
            missing_node
            for missing_node in missing
            if missing_node.node == nodes[0] or not set(nodes[1:]) & set(side_of)
        ),
        None,
    )
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
        clocks={
            names.label[reply.node]: reply.clock
            for reply in found.answered
            if reply.clock and reply.node in names.label
        },
    )


def _slowest_first(compared: Compared) -> tuple[bool, float, str]:
    change = compared.comparison.change_ratio
    return (change is None, -(change or 0.0), compared.name)


def _check(value: object) -> None:
    """Raise NodeError if a number or a text cannot be from a recording."""
    if isinstance(value, dict):
        _check(list(value))
        _check(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            _check(one)
    elif isinstance(value, str):
        if len(value) > _MAX_CHARACTERS:
            raise NodeError("its answer is malformed: a name is too long")
    elif isinstance(value, int | float) and not (math.isfinite(value) and 0 <= value < _MOST):
        raise NodeError("its answer is malformed: a number is too large")
