"""`ingero query`: SQL on a recording, or its calls by time, process and operation."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import rich_click as click

from ingero.cli.command_group import WholeNumber
from ingero.cli.config.switches import configured
from ingero.cli.config.value_words import starting_with
from ingero.cli.fleet.options import Fleet, FleetFlags, fleet_of, fleet_options
from ingero.cli.output import EXIT_CLOSED_PIPE, drop_output, echo
from ingero.cli.recording_path import recording_path
from ingero.errors import IngeroError
from ingero.ops import BY_NAME
from ingero.serve.backlog import Sink, standard_output
from ingero.serve.sql import Rows, count_rows, open_rows
from ingero.store.sql_text import Row
from ingero.units import format_count, parse_duration_s

_TIMEOUT = "60s"
_SHOWN_CALLS, _SHOWN_ROWS = 100, 1000  # rows of a table where --limit does not say; files and pipes get all


class QueryError(IngeroError):
    """The options exclude each other."""


@click.command("query")
@click.argument("sql", required=False)
@click.option(
    "--db",
    "-d",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="F",
    help="Database file (default ~/.ingero/ingero.db).",
)
@click.option("--since", metavar="D", help="Without SQL: only the last 90s, 5m or 1h30m of the recording.")
@click.option("--pid", "-p", type=int, metavar="PID", help="Without SQL: only calls of this process.")
@click.option(
    "--op",
    metavar="NAME",
    help="Without SQL: only this operation, such as cudaStreamSynchronize.",
    shell_complete=starting_with(BY_NAME),
)
@click.option(
    "--limit",
    type=WholeNumber(0, sys.maxsize),
    metavar="N",
    help=f"Show at most N rows. Default: {_SHOWN_CALLS} calls or {_SHOWN_ROWS} rows of SQL; all of them with --json, "
    "--csv and --parquet.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row, with values as stored.")
@click.option(
    "--csv", "as_csv", is_flag=True, help="Print comma-separated values that are safe to open in a spreadsheet."
)
@click.option("--parquet", metavar="F", type=click.Path(path_type=Path, dir_okay=False), help="Write a Parquet file.")
@configured("query")
@fleet_options
def command(
    sql: str | None,
    db: Path | None,
    since: str | None,
    pid: int | None,
    op: str | None,
    limit: int | None,
    as_json: bool,
    as_csv: bool,
    parquet: Path | None,
    timeout: str | None,
    fleet: FleetFlags,
) -> None:
    """Query a recording with SQL, or list its calls.

    SQL is one SELECT over the published views (docs/schema.md), as an argument or on standard input. Without SQL,
    recorded calls are listed, newest first; --since, --pid and --op filter them.

    With --nodes, each node answers from its own recording, and the column node says which one it was; a node that does
    not answer is listed with the reason. ingero.yaml may name nodes (fleet: nodes:) for commands without --db.

    Exit code 3: the answer is partial, because nodes are missing.
    """
    if as_json + as_csv + (parquet is not None) > 1:
        raise QueryError("--json, --csv and --parquet exclude each other", hint="give one of them")
    nodes = fleet_of(fleet, db=db, timeout=timeout, environ=os.environ, uid=os.getuid())
    if nodes is not None:
        with _pipe_may_close():
            _ask_nodes(
                nodes, sql, since=since, pid=pid, op=op, limit=limit, as_json=as_json, as_csv=as_csv, parquet=parquet
            )
        return
    path = recording_path(db, os.environ, uid=os.getuid())
    if parquet is not None:
        from ingero.serve.export.output import refuse_recording  # noqa: PLC0415  # only this writes a file

        refuse_recording(parquet, path)
    is_raw = as_json or as_csv or parquet is not None
    statement = _statement(sql, is_filter=bool(since or op or pid is not None))
    text = statement if statement is not None else _filter_sql(path, since=since, pid=pid, op=op, all_columns=is_raw)
    if limit is None and not is_raw:
        limit = _SHOWN_CALLS if statement is None else _SHOWN_ROWS
    timeout_s = parse_duration_s(timeout or _TIMEOUT)
    with _pipe_may_close():
        _answer(path, text, limit, timeout_s=timeout_s, is_raw=is_raw, as_json=as_json, parquet=parquet)


@contextmanager
def _pipe_may_close() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # click would call this an error
        drop_output()
        sys.exit(EXIT_CLOSED_PIPE)


def _ask_nodes(
    nodes: Fleet, sql: str | None, *, since: str | None, pid: int | None, op: str | None, limit: int | None,
    as_json: bool, as_csv: bool, parquet: Path | None,
) -> None:  # fmt: skip
    from ingero.cli.fleet.query import query_fleet  # noqa: PLC0415  # needless for a recording
    from ingero.store.user_sql.event_filter import event_filter_sql, op_pair  # noqa: PLC0415  # as above

    if since is not None:
        raise QueryError(
            "--since is for one recording", hint="put the time into the WHERE of your SQL, or leave out --nodes"
        )
    is_raw = as_json or as_csv or parquet is not None
    statement = _statement(sql, is_filter=bool(op or pid is not None))
    if statement is None:
        pair = op_pair(op) if op else None
        statement = event_filter_sql(window=None, pid=pid, op=pair, all_columns=is_raw)
    if limit is None and not is_raw:
        limit = _SHOWN_ROWS
    query_fleet(nodes, statement, limit=limit, as_json=as_json, as_csv=as_csv, parquet=parquet)


def _answer(
    path: Path, sql: str, limit: int | None, *, timeout_s: float, is_raw: bool, as_json: bool, parquet: Path | None
) -> None:
    """Prints or writes the rows of a query; notes go to standard error."""
    cut = ""
    asked = open_rows(path, sql, timeout_s=timeout_s, way_out=", or give it longer with --timeout")
    if parquet is not None:
        with asked as rows:
            _write_parquet(rows, limit, parquet)
    elif is_raw:
        with standard_output() as out, asked as rows:
            _write(rows, limit, out, as_json=as_json)
    else:
        with asked as rows:
            shown, has_more = list(itertools.islice(rows, limit)), next(iter(rows), None) is not None
        _print_table(rows.columns, shown)  # only now: a slow reader must not keep the recording open
        cut = _cut_note(len(shown), count_rows(path, sql, timeout_s=timeout_s)) if has_more else ""
    for note in filter(None, (cut, *rows.notes)):
        echo(f"note: {note}", err=True)


def _statement(sql: str | None, *, is_filter: bool) -> str | None:
    """The SQL of the argument or standard input; None: list calls."""
    if sql is not None and is_filter:
        raise QueryError("--since, --pid and --op list calls without SQL", hint="put them into the WHERE of your SQL")
    if sql == "-" or (sql is None and not is_filter and not sys.stdin.isatty()):
        return sys.stdin.read().strip() or None
    return sql


def _filter_sql(path: Path, *, since: str | None, pid: int | None, op: str | None, all_columns: bool) -> str:
    from ingero.store.reader import open_reader  # noqa: PLC0415  # takes 80 ms, with numpy
    from ingero.store.user_sql.event_filter import event_filter_sql, op_pair  # noqa: PLC0415  # SQL needs none of it

    window = None
    if since:
        with open_reader(path) as reader:
            window = reader.window(int(parse_duration_s(since) * 1e9), time.time_ns())
    pair = op_pair(op) if op else None
    return event_filter_sql(window=window, pid=pid, op=pair, all_columns=all_columns)


def _write_parquet(rows: Rows, limit: int | None, parquet: Path) -> None:
    from ingero.serve.structured.parquet import write_parquet  # noqa: PLC0415  # only this needs its library

    count = write_parquet(parquet, rows.columns, itertools.islice(rows, limit))
    echo(f"{parquet}: {format_count(count)} rows", err=True)


def _write(rows: Rows, limit: int | None, out: Sink, *, as_json: bool) -> None:
    from ingero.serve.structured.row_formats import csv_texts, json_texts  # noqa: PLC0415  # a table needs neither

    for text in (json_texts if as_json else csv_texts)(rows.columns, itertools.islice(rows, limit)):
        with rows.paused():
            out.write(text.encode("utf-8"))


def _print_table(columns: Sequence[str], shown: list[Row]) -> None:
    from ingero.cli.result_table import table_lines  # noqa: PLC0415  # the other formats do without Rich

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in table_lines(columns, shown, width):
        echo(line)


def _cut_note(shown: int, total: int | None) -> str:
    """A note that rows were left out. total: the number of rows; None: they could not be counted in time."""
    many = f"{format_count(total)} rows" if total is not None else "more rows, too many to count in time"
    return f"{format_count(shown)} of {many} are shown; --limit N shows more, --csv and --json all"
