"""`ingero compare --nodes`: compares a node with others that do the same work."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

from ingero.cli.fleet.options import Fleet, FleetOptionError
from ingero.cli.fleet.output import (
    EXIT_PARTIAL,
    clocks_json,
    missing_json,
    print_json,
    say_asking,
    say_clocks,
    say_known,
    say_missing,
)
from ingero.cli.output import echo, echo_folded
from ingero.cli.result_table import table_lines
from ingero.diagnose.comparison.change_verdict import Verdict
from ingero.fleet.client import NodeClient
from ingero.fleet.fan_out import ask_nodes
from ingero.fleet.node_comparisons import Compared, FleetComparison, NodeSide, ask_side, fleet_comparison
from ingero.serve.text.comparison_text import VERSION, comparison_json, comparison_lines
from ingero.serve.text.styled_lines import comparison_line
from ingero.units import format_percent

_WORSE = 1
_COLUMNS = ("node", "verdict", "change", "noise", "causes that it has more of")
_MAX_CAUSES = 3


def compare_fleet(fleet: Fleet, *, since: str, as_json: bool) -> int:
    """Prints how the first node differs from the others; returns the exit code.

    Raises:
        FleetOptionError: there is only one node.
        ComparisonError: the first, or all others, did not answer.
    """
    if len(fleet.nodes) < 2:
        raise FleetOptionError("one node cannot be compared", hint="--nodes A,B: what is different on B")

    async def ask(client: NodeClient) -> NodeSide:
        return await ask_side(client, since=since)

    say_asking(fleet)
    answered = ask_nodes(fleet.reach, ask)
    found = fleet_comparison(answered, fleet.nodes)
    if as_json:
        print_json(_json(found))
    say_clocks(found.clocks, fleet)
    say_known(fleet)
    for line in () if as_json else _lines(found, is_pair=len(fleet.nodes) == 2):
        echo_folded(comparison_line(line))
    for note in found.notes:
        echo(f"note: {note}", err=True)
    say_missing(found.missing, len(fleet.nodes))
    if found.missing:
        return EXIT_PARTIAL
    return _WORSE if any(node.comparison.verdict is Verdict.WORSE for node in found.nodes) else 0


def _lines(found: FleetComparison, *, is_pair: bool) -> Iterator[str]:
    if is_pair:
        [other] = found.nodes
        yield f"before: {found.reference}, after: {other.name}"
        yield from comparison_lines(other.comparison)
        return
    yield f"Against {found.reference}, slowest first:"
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    yield from table_lines(_COLUMNS, [_row(node) for node in found.nodes], width)


def _row(node: Compared) -> tuple[str, ...]:
    change, noise = node.comparison.change_ratio, node.comparison.noise_ratio
    more = [cause.cause for cause in node.comparison.causes if cause.verdict in (Verdict.NEW, Verdict.WORSE)]
    return (
        node.name,
        node.comparison.verdict.value,
        "" if change is None else f"{100 * change:+.1f}%",
        "" if noise is None else format_percent(noise),
        ", ".join(more[:_MAX_CAUSES]),
    )


def _json(found: FleetComparison) -> dict[str, object]:
    return {
        "version": VERSION,
        "reference": found.reference,
        "nodes": [
            {"node": node.name, "address": str(node.node), "comparison": comparison_json(node.comparison)}
            for node in found.nodes
        ],
        "partial": bool(found.missing),
        "missing": missing_json(found.missing),
        "notes": found.notes,
        "clocks": clocks_json(found.clocks),
    }
