"""`ingero query --nodes`: one statement for many nodes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

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
from ingero.cli.output import echo
from ingero.cli.result_table import table_lines
from ingero.fleet.planned_rows import FleetRows, fleet_rows
from ingero.foreign_text import visible
from ingero.serve.structured.row_formats import csv_texts, distinct_names
from ingero.units import format_count


def query_fleet(
    fleet: Fleet, sql: str, *, limit: int | None, as_json: bool, as_csv: bool, parquet: Path | None
) -> None:
    """Prints or writes the rows of all nodes; ends with EXIT_PARTIAL where nodes are missing.

    Raises:
        NobodyAnsweredError: no node has answered.
    """
    say_asking(fleet)
    found = fleet_rows(fleet.reach, sql, limit=limit)
    if as_json:
        print_json(_json(found))
    if not found.nodes:
        raise nobody_answered(found.missing)
    say_clocks(found.clocks, fleet)
    say_known(fleet)
    if as_csv:
        sys.stdout.writelines(csv_texts(found.columns, found.rows))
        sys.stdout.flush()
    elif parquet is not None:
        from ingero.serve.structured.parquet import write_parquet  # noqa: PLC0415  # only this needs its library

        echo(f"{parquet}: {format_count(write_parquet(parquet, found.columns, found.rows))} rows", err=True)
    elif not as_json:
        _print_table(found)
    for note in _notes(found):
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


def _notes(found: FleetRows) -> list[str]:
    notes = list(found.notes)
    if found.truncated:
        some = ", ".join(found.truncated[:5]) + (" and more" if len(found.truncated) > 5 else "")
        notes.append(
            f"{len(found.truncated)} of {len(found.nodes)} nodes have more rows: {some}; --limit N asks for more"
        )
    elif found.is_cut:
        notes.append("there are more rows; --limit N shows more")
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
        "is_cut": found.is_cut,
        "notes": found.notes,
        "clocks": clocks_json(found.clocks),
    }
