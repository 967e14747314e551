"""`ingero export`: a recording for Perfetto, chrome://tracing, flame graph tools and pprof."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import apsw
import rich_click as click

from ingero.cli.command_group import Words
from ingero.cli.fleet.options import MERGE_SKEW, FleetFlags, fleet_of, fleet_options
from ingero.cli.moments import parse_time_ns
from ingero.cli.output import echo
from ingero.cli.progress import progress_bar
from ingero.cli.recorded_pid import check_pid
from ingero.cli.recording_path import recording_path
from ingero.errors import IngeroError
from ingero.serve.export.flamegraph import Weight
from ingero.serve.export.formats import Format, export
from ingero.serve.export.gaps import gap_lines
from ingero.serve.export.output import STANDARD_OUTPUT, output_file, refuse_recording
from ingero.store.errors import EmptyRecordingError, reading_error
from ingero.store.reader import Reader, open_reader
from ingero.store.records import Window
from ingero.store.streaming.streams import Streams
from ingero.units import format_bytes, parse_duration_s

_NODE_TIMEOUT = "60s"  # a node copies that part of its recording first
_SUFFIXES = {Format.PERFETTO: "pftrace", Format.CHROME: "json", Format.FLAMEGRAPH: "folded", Format.PPROF: "pb.gz"}


class WindowError(IngeroError):
    """The time range is empty, or given twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExportOptions:
    """The options of an export. output: None: a new file named after the recording."""

    form: Format
    output: Path | None
    since: str | None
    begin: str | None
    end: str | None
    pid: int | None
    node: str | None
    weight: Weight


@click.command("export")
@click.option(
    "--format",
    "form",
    type=Words([form.value for form in Format]),
    required=True,
    metavar="FORMAT",
    help="Format: perfetto (ui.perfetto.dev), chrome (JSON, also for chrome://tracing), flamegraph (collapsed stacks) "
    "or pprof.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="F",
    help="File to write; - is standard output. Default: named after the recording, in the current folder.",
)
@click.option(
    "--db",
    "-d",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="F",
    help="Database file (default ~/.ingero/ingero.db).",
)
@click.option("--since", metavar="D", help="Only the last 90s, 5m or 1h30m of the recording.")
@click.option(
    "--from", "begin", metavar="T", help='Start of the time range: 14:05, "2026-11-21 14:05:30" or unix seconds.'
)
@click.option("--to", "end", metavar="T", help="End of the time range.")
@click.option("--pid", type=int, metavar="PID", help="Only this process.")
@click.option("--node", metavar="N", help="Only this node of a merged recording.")
@click.option(
    "--weight",
    type=Words([weight.value for weight in Weight]),
    metavar="WEIGHT",
    help="Width of flame graph frames: time (in calls, the default), calls (how many) or offcpu (time off the CPU).",
)
@click.option("--timeout", metavar="D", help=f"With --nodes: wait this long for each node. Default: {_NODE_TIMEOUT}.")
@fleet_options
def command(
    form: str,
    output: Path | None,
    db: Path | None,
    since: str | None,
    begin: str | None,
    end: str | None,
    pid: int | None,
    node: str | None,
    weight: str | None,
    timeout: str | None,
    fleet: FleetFlags,
) -> None:
    """Export a recording to Perfetto, Chrome, flame graphs or pprof.

    With --nodes, export the recordings of many nodes as one.

    Exit code 3: with --nodes, nodes are missing.
    """
    if weight and form != Format.FLAMEGRAPH.value:
        raise click.UsageError("--weight is for --format flamegraph; a pprof profile has all three")
    wanted = _ExportOptions(
        form=_format(form, output), output=output, since=since, begin=begin, end=end, pid=pid, node=node,
        weight=Weight(weight or Weight.TIME.value),
    )  # fmt: skip
    nodes = fleet_of(
        fleet, db=db, timeout=timeout or _NODE_TIMEOUT, skew=MERGE_SKEW, environ=os.environ, uid=os.getuid()
    )
    if nodes is None:
        path = recording_path(db, os.environ, uid=os.getuid())
        _export(path, path.stem, wanted)
        return
    from ingero.cli.fleet.recording import NAME, fetched_recording  # noqa: PLC0415  # needless for a recording

    with fetched_recording(nodes, since=since, begin=begin, end=end) as (path, exit_code):
        _export(path, NAME, wanted)
    if exit_code:
        sys.exit(exit_code)


def _format(form: str, output: Path | None) -> Format:
    """The format of an export; --format perfetto into a .json file is Chrome's JSON, as documented."""
    is_json = form == Format.PERFETTO.value and output is not None and output.suffix.lower() == ".json"
    return Format.CHROME if is_json else Format(form)


def _export(path: Path, name: str, wanted: _ExportOptions) -> None:
    """Exports one recording. name: the name of the file without a suffix, where --output is not given."""
    output = wanted.output or _unused_path(Path(f"{name}.{_SUFFIXES[wanted.form]}"))
    try:
        with open_reader(path, node=wanted.node) as reader:
            whole = _recorded_range(reader)
            if whole is None:
                raise EmptyRecordingError(path, reader.missing_end)
            window = _window(reader, whole, wanted.since, wanted.begin, wanted.end)
            check_pid(reader, wanted.pid)
            refuse_recording(output, path)
            _write(Streams(reader, window, pid=wanted.pid), whole, wanted, output)
    except apsw.Error as error:  # a damaged page is met when it is reached
        raise reading_error(path, error) from error


def _unused_path(path: Path) -> Path:
    """The path, or the first numbered one that does not exist: existing files are not overwritten."""
    stem, suffix = path.name.split(".", 1)
    names = (path, *(path.with_name(f"{stem}-{number}.{suffix}") for number in range(2, 1000)))
    return next((name for name in names if not os.path.lexists(name)), path)


def _write(streams: Streams, whole: Window, wanted: _ExportOptions, output: Path) -> None:
    began_s = time.monotonic()
    with output_file(output) as file, progress_bar() as progress:
        written = export(streams, whole, wanted.form, file, weight=wanted.weight, progress=progress)
    _say(f"{written.text} in {time.monotonic() - began_s:.1f} s: {_where(output)}", output)
    if len(streams.reader.nodes()) > 1:
        from ingero.fleet.merged_clocks import merged_clocks  # noqa: PLC0415  # only of several nodes

        if unknown := merged_clocks(streams.reader).not_compared():
            _say(unknown, output)
    for line in gap_lines(streams.reader, streams.window):
        _say(line, output)


def _recorded_range(reader: Reader) -> Window | None:
    """The time range of a recording, with the time before the first call and after the last one."""
    window = reader.window(None, time.time_ns())
    sessions = reader.sessions()
    if window is None or not sessions:
        return window
    return Window(
        begin_ns=min(window.begin_ns, *(session.started_ns for session in sessions)),
        end_ns=max(window.end_ns, *(session.last_seen_ns + 1 for session in sessions)),
    )


def _window(reader: Reader, whole: Window, since: str | None, begin: str | None, end: str | None) -> Window:
    if since and (begin or end):
        raise WindowError("--since and --from or --to exclude each other", hint="leave one of them out")
    window = reader.window(int(parse_duration_s(since) * 1e9), time.time_ns()) if since else whole
    assert window is not None  # `whole` is not
    if begin:
        window = replace(window, begin_ns=parse_time_ns(begin, whole))
    if end:
        latest_ns = max(whole.end_ns, window.begin_ns + 1)  # an empty window says what there is
        window = replace(window, end_ns=min(parse_time_ns(end, whole), latest_ns))
    if window.duration_ns <= 0:
        raise WindowError("no time lies between --from and --to", hint="the start goes to --from, the end to --to")
    return window


def _where(output: Path) -> str:
    if output == STANDARD_OUTPUT or not output.is_file():
        return str(output)
    return f"{output} ({format_bytes(output.stat().st_size)})"


def _say(line: str, output: Path) -> None:
    """Prints a line to standard output, or to standard error if the export itself goes there."""
    echo(line, err=output == STANDARD_OUTPUT)
