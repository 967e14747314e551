"""`ingero check`: whether this machine can be traced, what is missing, and the command that mends it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import rich_click as click

from ingero.cli.fleet_options import FleetFlags, FleetOptionError, fleet_beside, fleet_options, refuse_alone
from ingero.cli.output import echo, echo_json

EXIT_NOT_READY = 1


@click.command("check")
@click.option("--json", "is_json", is_flag=True, help="One JSON object.")
@click.option(
    "--recording", "of_recording", is_flag=True, help="Whether a recording goes on: the last second is there."
)
@click.option(
    "--db", "-d", type=click.Path(path_type=Path), metavar="F", help="With --recording: database "
    "(default ~/.ingero/ingero.db)."
)  # fmt: skip
@click.option("--timeout", metavar="D", help="With --nodes: give a node up after this time. Default: 5s.")
@fleet_options
def command(is_json: bool, of_recording: bool, db: Path | None, timeout: str | None, fleet: FleetFlags) -> None:
    """Say whether this machine can be traced, and what mends it; or whether a recording goes on, here or on many nodes.

    With --nodes, nothing of this machine is looked at: each node says its version, whether it records, and its clock.

    Exit code 0: it can, or all do; 1: something is to be mended, 2: an error, 3: nodes are missing.
    """
    if db is not None and not of_recording:
        raise click.UsageError("--db is the database of --recording, which is not asked for")
    if fleet.nodes:
        if of_recording:
            raise click.UsageError("--nodes asks nodes whether they record; --recording is of this machine")
        from ingero.cli.fleet_check import check_fleet  # noqa: PLC0415  # needless for this machine

        nodes = fleet_beside(fleet, timeout=timeout, environ=os.environ, uid=os.getuid())
        assert nodes is not None  # they were named
        sys.exit(check_fleet(nodes, as_json=is_json))
    if timeout is not None:
        raise FleetOptionError("--timeout is of nodes", hint="name some: --nodes gpu-01,gpu-02")
    refuse_alone(fleet)  # nodes of ingero.yaml are of commands that ask recordings
    if of_recording:
        _check_recording(db, is_json=is_json)
        return
    from ingero.cli.machine_check import as_json, as_text, gather  # noqa: PLC0415  # health checks ask each minute
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
    from ingero.cli.recording_check import recording_state  # noqa: PLC0415  # the machine's rows need no database
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
        echo(state.found)
        if state.fix:
            echo(f"  try: {state.fix}")
    if not state.is_written:
        sys.exit(EXIT_NOT_READY)
