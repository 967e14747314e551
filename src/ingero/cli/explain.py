"""`ingero explain`: where the time of a recording went."""

from __future__ import annotations

import os
import time
from pathlib import Path

import rich_click as click

from ingero.errors import IngeroError
from ingero.serve.account import account_text
from ingero.store.locations import database_path
from ingero.store.reader import open_reader
from ingero.units import parse_duration_s


class EmptyRecordingError(IngeroError):
    """The database holds nothing."""


@click.command("explain")
@click.option(
    "--db", "-d", type=click.Path(path_type=Path, dir_okay=False), help="Database (default ~/.ingero/ingero.db)."
)
@click.option("--since", metavar="D", help="Only the last 90s, 5m, 1h30m of the recording.")
@click.option("--pid", type=int, help="Only this process.")
@click.option("--stacks", is_flag=True, help="Show the whole stacks of the longest calls.")
def command(db: Path | None, since: str | None, pid: int | None, stacks: bool) -> None:
    """Say where the time of a recording went."""
    path = database_path(db, os.environ, uid=os.getuid())
    since_ns = int(parse_duration_s(since) * 1e9) if since else None
    with open_reader(path) as reader:
        window = reader.window(since_ns, time.time_ns())
        if window is None:
            raise EmptyRecordingError(f"{path} holds no recording yet", hint="sudo ingero trace --duration 60s")
        for line in account_text(reader, window, pid=pid, whole_stacks=stacks):
            click.echo(line)
