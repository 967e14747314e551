"""`ingero check`: whether this host can be traced, what is missing, and the command that fixes it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import rich_click as click

from ingero.cli.fleet.options import FleetFlags, FleetOptionError, configured_fleet, fleet_options, refuse_without_nodes
from ingero.cli.output import echo, echo_json
from ingero.serve.text.styles import Style

EXIT_NOT_READY = 1


@click.command("check")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--recording",
    "of_recording",
    is_flag=True,
    help="Check whether a recording is in progress: its last second has been written.",
)
@click.option(
    "--db", "-d", type=click.Path(path_type=Path), metavar="F", help="With --recording: database file "
    "(default ~/.ingero/ingero.db)."
)  # fmt: skip
@click.option("--timeout", metavar="D", help="With --nodes: wait this long for each node. Default: 5s.")
@fleet_options
def command(is_json: bool, of_recording: bool, db: Path | None, timeout: str | None, fleet: FleetFlags) -> None:
    """Check whether this host can be traced, and how to fix what is missing.

    With --recording, check whether a recording is in progress. With --nodes, check many nodes instead of this host:
    version, recording and clock of each.

    Exit code 0: ready, 1: something is missing, 2: error, 3: nodes are missing.
    """
    if db is not None and not of_recording:
        raise click.UsageError("--db needs --recording")
    if fleet.nodes:
        if of_recording:
            raise click.UsageError("--recording is about this host, --nodes about others; give one of them")
        from ingero.cli.fleet.check import check_fleet  # noqa: PLC0415  # needless for this machine

        nodes = configured_fleet(fleet, timeout=timeout, environ=os.environ, uid=os.getuid())
        assert nodes is not None  # they were named
        sys.exit(check_fleet(nodes, as_json=is_json))
    if timeout is not None:
        raise FleetOptionError("--timeout needs --nodes", hint="--nodes gpu-01,gpu-02")
    refuse_without_nodes(fleet)  # nodes of ingero.yaml are of commands that ask recordings
    if of_recording:
        _check_recording(db, is_json=is_json)
        return
    from ingero.cli.check.machine import as_json, as_text, gather  # noqa: PLC0415  # health checks ask each minute
    from ingero.discover.checks import all_rows, is_ready  # noqa: PLC0415  # as above

    rows = all_rows(gather())
    if is_json:
        echo_json(as_json(rows))
    else:
        for line in as_text(rows):
            echo(line)
    if not is_ready(rows):
        sys.exit(EXIT_NOT_READY)


def _check_recording(db: Path | None, *, is_json: bool) -> None:
    from ingero.cli.check.recording import recording_state  # noqa: PLC0415  # the machine's rows need no database
    from ingero.cli.recording_path import recording_path  # noqa: PLC0415  # as above

    state = recording_state(recording_path(db, os.environ, uid=os.getuid()), time.time_ns())
    if is_json:
        echo_json(
            {
                "version": 1,
                "recording": state.is_written,
                "last_second_ns": state.last_second_ns,
                "found": state.found,
                "fix": state.fix or None,
            }
        )
    else:
        echo(((state.found, Style.OK if state.is_written else Style.FAILED),))
        if state.fix:
            echo((("  fix: ", Style.HEADING), (state.fix, Style.COMMAND)))
    if not state.is_written:
        sys.exit(EXIT_NOT_READY)
