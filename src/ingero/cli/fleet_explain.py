"""`ingero explain --nodes`: what went wrong on which node."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ingero.cli.fleet_options import Fleet
from ingero.cli.fleet_output import EXIT_PARTIAL, missing_json, nobody_answered, print_json, say_asking, say_missing
from ingero.cli.output import echo
from ingero.fleet.client import NodeClient
from ingero.fleet.explanations import Explanation, FleetExplanation, ask_explanation, fleet_explanation, silent
from ingero.fleet.fan_out import ask_nodes
from ingero.fleet.node_lists import listed

_FOUND = 1
_VERSION = 1
_MOST_FIXES = 3


def explain_fleet(fleet: Fleet, *, since: str, pid: int | None, rule: str | None, as_json: bool) -> int:
    """Prints what each node found; answers the exit code.

    Raises:
        NobodyAnsweredError: no node has answered.
    """

    async def ask(client: NodeClient) -> Explanation:
        return await ask_explanation(client, since=since, pid=pid, cause=rule or "")

    say_asking(fleet)
    found = fleet_explanation(ask_nodes(fleet.nodes, fleet.access, fleet.context, ask, timeout_s=fleet.timeout_s))
    if as_json:
        print_json(_json(found))
    if not found.explained:
        raise nobody_answered(found.missing)
    for line in () if as_json else _lines(found):
        echo(line)
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
            yield f"  Fix: {'; '.join(chain.recommendations[:_MOST_FIXES])}"
    for headline, nodes in silent(found).items():
        yield ""
        yield f"{listed(nodes, most=8)}: {headline}"


def _json(found: FleetExplanation) -> dict[str, object]:
    return {
        "version": _VERSION,
        "chains": [msgspec.to_builtins(chain) | {"node": node} for node, chain in found.chains],
        "nodes": [
            {
                "node": label,
                "address": str(one.node),
                "headline": one.answer.headline,
                "diagnosis": one.answer.diagnosis,
            }
            for label, one in found.explained.items()
        ],
        "partial": bool(found.missing),
        "missing": missing_json(found.missing),
        "notes": found.notes,
    }
