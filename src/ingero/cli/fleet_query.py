"""`ingero query --nodes`: one statement for many nodes."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from ingero.cli.fleet_options import Fleet
from ingero.cli.fleet_output import EXIT_PARTIAL, missing_json, nobody_answered, print_json, say_asking, say_missing
from ingero.cli.output import echo
from ingero.cli.result_table import table_lines
from ingero.fleet.client import NodeClient, NodeRows
from ingero.fleet.fan_out import ask_nodes
from ingero.fleet.plain_rows import FleetRows, ask_rows, plain_rows
from ingero.foreign_text import visible
from ingero.serve.row_formats import csv_texts, distinct_names
from ingero.serve.row_lines import MOST_ROWS, MOST_SECONDS
from ingero.units import format_count

_ROWS_OF_A_NODE = 10_000  # where --limit does not say
_OF_ITS_TIME = 0.9  # that a statement may take on the node, so that the node can still say so
_OVER_ROWS = re.compile(
    r"\b(?:order\s+by|limit|distinct|group\s+by|(?:count|sum|total|avg|min|max|median|percentile\w*)\s*\()",
    re.IGNORECASE,
)
_EACH_NODE = "each node answered for itself: totals, ORDER BY, DISTINCT and LIMIT are those of each node, not of all"


def query_fleet(
    fleet: Fleet, sql: str, *, limit: int | None, as_json: bool, as_csv: bool, parquet: Path | None
) -> None:
    """Prints or writes the rows of all nodes; ends with EXIT_PARTIAL where nodes are missing.

    Raises:
        NobodyAnsweredError: no node has answered.
    """
    of_a_node = min(_ROWS_OF_A_NODE if limit is None else max(1, limit), MOST_ROWS)
    node_s = min(MOST_SECONDS, fleet.timeout_s * _OF_ITS_TIME)

    async def ask(client: NodeClient) -> list[NodeRows]:
        return await ask_rows(client, sql, limit=of_a_node, timeout_s=node_s)

    say_asking(fleet)
    found = plain_rows(ask_nodes(fleet.nodes, fleet.access, fleet.context, ask, timeout_s=fleet.timeout_s), limit=limit)
    if as_json:
        print_json(_json(found))
    if not found.nodes:
        raise nobody_answered(found.missing)
    if as_csv:
        sys.stdout.writelines(csv_texts(found.columns, found.rows))
        sys.stdout.flush()
    elif parquet is not None:
        from ingero.serve.parquet import write_parquet  # noqa: PLC0415  # only this needs its library

        echo(f"{parquet}: {format_count(write_parquet(parquet, found.columns, found.rows))} rows", err=True)
    elif not as_json:
        _print_table(found)
    for note in _notes(found, sql):
        echo(f"note: {note}", err=True)
    say_missing(found.missing, len(fleet.nodes))
    if found.is_partial:
        sys.exit(EXIT_PARTIAL)


def _print_table(found: FleetRows) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in table_lines(found.columns, found.rows, width):
        echo(line)
    echo("")
    echo(f"  {len(found.rows)} rows from {len(found.nodes)} node(s)")


def _notes(found: FleetRows, sql: str) -> list[str]:
    notes = list(found.notes)
    if found.truncated:
        some = ", ".join(found.truncated[:5]) + (" and more" if len(found.truncated) > 5 else "")
        notes.append(
            f"{len(found.truncated)} of {len(found.nodes)} nodes have more rows: {some}; --limit N asks for more"
        )
    elif found.is_cut:
        notes.append("more rows were answered than --limit shows")
    if len(found.nodes) > 1 and _OVER_ROWS.search(sql):
        notes.append(_EACH_NODE)
    return [visible(note) for note in notes]


def _json(found: FleetRows) -> dict[str, object]:
    names = distinct_names(found.columns)
    return {
        "columns": names,
        "rows": [dict(zip(names, row, strict=True)) for row in found.rows],
        "nodes": found.nodes,
        "partial": found.is_partial,
        "missing": missing_json(found.missing),
        "truncated": found.truncated,
        "is_cut": found.is_cut or bool(found.truncated),
        "notes": found.notes,
    }
