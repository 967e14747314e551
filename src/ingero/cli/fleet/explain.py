"""`ingero explain --nodes`: what went wrong on which node."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ingero.cli.fleet.options import Fleet
from ingero.cli.fleet.output import (
    EXIT_PARTIAL,
    clocks_json,
    missing_json,
    nobody_answered,
    print_json,
    say_asking,
    say_clocks,
    say_known,
    say_missing,
)
from ingero.cli.merge.order_lines import Began, order_lines
from ingero.cli.output import echo, echo_folded
from ingero.fleet.chain_order import InOrder, in_order
from ingero.fleet.client import NodeClient
from ingero.fleet.explanations import (
    Explanation,
    FleetExplanation,
    ask_explanation,
    fleet_explanation,
    nodes_without_chains,
)
from ingero.fleet.fan_out import ask_nodes
from ingero.fleet.node_lists import listed
from ingero.serve.text.styled_lines import report_lines

_FOUND = 1
_VERSION = 1
_MAX_FIXES = 3


def explain_fleet(fleet: Fleet, *, since: str, pid: int | None, rule: str | None, as_json: bool) -> int:
    """Prints the findings of each node; returns the exit code.

    Raises:
        NobodyAnsweredError: no node has answered.
    """

    async def ask(client: NodeClient) -> Explanation:
        return await ask_explanation(client, since=since, pid=pid, cause=rule or "")

    say_asking(fleet)
    found = fleet_explanation(ask_nodes(fleet.reach, ask))
    if as_json:
        print_json(_json(found))
    if not found.explained:
        raise nobody_answered(found.missing)
    say_clocks(found.clocks, fleet)
    say_known(fleet)
    for line in () if as_json else report_lines(_lines(found)):
        echo_folded(line)
    for note in found.notes:
        echo(f"note: {note}", err=True)
    say_missing(found.missing, len(fleet.nodes))
    if found.missing:
        return EXIT_PARTIAL
    return _FOUND if found.chains else 0


def _lines(found: FleetExplanation) -> Iterator[str]:
    yield f"FLEET CAUSAL CHAINS - {len(found.chains)} chain(s) from {len(found.explained)} node(s)"
    for node, chain in found.chains:
        yield ""
        yield f"[{chain.severity}] [{node}] {chain.summary}"
        yield f"  Root cause: {chain.root_cause}" + (f": {chain.explanation}" if chain.explanation else "")
        if chain.recommendations:
            yield f"  Fix: {'; '.join(chain.recommendations[:_MAX_FIXES])}"
    if len({node for node, _ in found.chains}) > 1:
        yield ""
        yield from _order_lines(in_order(found))
    for headline, nodes in nodes_without_chains(found).items():
        yield ""
        yield f"{listed(nodes, most=8)}: {headline}"


def _order_lines(order: InOrder) -> Iterator[str]:
    """The lines of when the incidents began, and of those with an unknown order."""
    began = [
        Began(entry.start_ns, entry.bound_ns, entry.node, entry.chain.root_cause, entry.is_known)
        for entry in order.placed
    ]
    yield from order_lines("this host's clock", began, ((entry.node, entry.reason) for entry in order.not_placed))


def _order_json(order: InOrder) -> list[dict[str, object]]:
    placed: list[dict[str, object]] = [
        {
            "node": entry.node,
            "id": entry.chain.id,
            "start_ns": entry.start_ns,
            "bound_ns": entry.bound_ns,
            "is_order_known": entry.is_known,
        }
        for entry in order.placed
    ]
    return placed + [
        {"node": entry.node, "id": entry.chain.id, "start_ns": None, "bound_ns": None, "is_order_known": False,
         "reason": entry.reason}
        for entry in order.not_placed
    ]  # fmt: skip


def _json(found: FleetExplanation) -> dict[str, object]:
    return {
        "version": _VERSION,
        "chains": [msgspec.to_builtins(chain) | {"node": node} for node, chain in found.chains],
        "nodes": [
            {
                "node": label,
                "address": str(explained.node),
                "headline": explained.answer.headline,
                "diagnosis": explained.answer.diagnosis,
            }
            for label, explained in found.explained.items()
        ],
        "partial": bool(found.missing),
        "missing": missing_json(found.missing),
        "notes": found.notes,
        "clocks": clocks_json(found.clocks),
        "order": _order_json(in_order(found)),
    }
