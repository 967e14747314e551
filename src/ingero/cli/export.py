"""`ingero export`: a recording for Perfetto, chrome://tracing, flame graph tools and pprof."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import apsw
import rich_click as click

from ingero.cli.moments import parse_moment_ns
from ingero.cli.output import echo
from ingero.cli.progress import progress_bar
from ingero.cli.recorded_pid import check_pid
from ingero.errors import IngeroError
from ingero.serve.export.flamegraph import Weight
from ingero.serve.export.formats import Format, export
from ingero.serve.export.gaps import gap_lines
from ingero.serve.export.output import STANDARD_OUTPUT, output_file, refuse_recording
from ingero.store.errors import EmptyRecordingError, reading_error
from ingero.store.locations import database_path
from ingero.store.reader import Reader, open_reader
from ingero.store.records import Window
from ingero.store.streams import Streams
from ingero.units import format_bytes, parse_duration_s


class WindowError(IngeroError):
    """No time lies between the moments given."""


@click.command("export")
@click.option(
    "--format",
    "form",
    type=click.Choice([one.value for one in Format]),
    required=True,
    help="perfetto: ui.perfetto.dev; chrome: JSON, for chrome://tracing, too; flamegraph: collapsed stacks; pprof.",
)
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="The file; - is standard output.")
@click.option(
    "--db", "-d", type=click.Path(path_type=Path, dir_okay=False), help="Database (default ~/.ingero/ingero.db)."
)
@click.option("--since", metavar="D", help="Only the last 90s, 5m, 1h30m of the recording.")
@click.option("--from", "begin", metavar="T", help='Begin: "2026-11-21 13:40:05", 13:40 or unix seconds.')
@click.option("--to", "end", metavar="T", help="End, written like --from.")
@click.option("--pid", type=int, help="Only this process.")
@click.option("--node", metavar="N", help="Only this node of a merged recording.")
@click.option(
    "--weight",
    type=click.Choice([one.value for one in Weight]),
    help="Flame graphs: ns in calls (default), number of calls, or ns of calls spent off the CPU.",
)
def command(
    form: str,
    output: Path,
    db: Path | None,
    since: str | None,
    begin: str | None,
    end: str | None,
    pid: int | None,
    node: str | None,
    weight: str | None,
) -> None:
    """Write a recording for Perfetto, chrome://tracing, flame graph tools or pprof."""
    if weight and form != Format.FLAMEGRAPH.value:
        raise click.UsageError("--weight is for --format flamegraph; a pprof profile has all three")
    path = database_path(db, os.environ, uid=os.getuid())
    try:
        with open_reader(path, node=node) as reader:
            whole = _whole(reader)
            if whole is None:
                raise EmptyRecordingError(path, reader.missing_end)
            window = _window(reader, whole, since, begin, end)
            check_pid(reader, pid)
            refuse_recording(output, path)
            _write(Streams(reader, window, pid=pid), whole, Format(form), Weight(weight or Weight.TIME.value), output)
    except apsw.Error as error:  # a damaged page is met when it is reached
        raise reading_error(path, error) from error


def _write(streams: Streams, whole: Window, form: Format, weight: Weight, output: Path) -> None:
    began_s = time.monotonic()
    with output_file(output) as file, progress_bar() as progress:
        written = export(streams, whole, form, file, weight=weight, progress=progress)
    _say(f"{written.text} in {time.monotonic() - began_s:.1f} s: {_where(output)}", output)
    for line in gap_lines(streams.reader, streams.window):
        _say(line, output)


def _whole(reader: Reader) -> Window | None:
    """All there is: threads are watched before the first call and after the last one."""
    window = reader.window(None, time.time_ns())
    sessions = reader.sessions()
    if window is None or not sessions:
        return window
    return Window(
        begin_ns=min(window.begin_ns, *(one.started_ns for one in sessions)),
        end_ns=max(window.end_ns, *(one.last_seen_ns + 1 for one in sessions)),
    )


def _window(reader: Reader, whole: Window, since: str | None, begin: str | None, end: str | None) -> Window:
    if since and (begin or end):
        raise WindowError("--since and --from or --to exclude each other", hint="leave one of them away")
    window = reader.window(int(parse_duration_s(since) * 1e9), time.time_ns()) if since else whole
    assert window is not None  # `whole` is not
    if begin:
        window = replace(window, begin_ns=parse_moment_ns(begin, whole))
    if end:
        latest_ns = max(whole.end_ns, window.begin_ns + 1)  # an empty window says what there is
        window = replace(window, end_ns=min(parse_moment_ns(end, whole), latest_ns))
    if window.duration_ns <= 0:
        raise WindowError("no time lies between --from and --to", hint="the begin goes to --from, the end to --to")
    return window


def _where(output: Path) -> str:
    if output == STANDARD_OUTPUT or not output.is_file():
        return str(output)
    return f"{output} ({format_bytes(output.stat().st_size)})"


def _say(line: str, output: Path) -> None:
    """To standard output, unless the export itself goes there."""
    echo(line, err=output == STANDARD_OUTPUT)
