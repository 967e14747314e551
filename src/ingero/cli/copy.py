"""`ingero copy`: a consistent copy of a recording, even while it is being written."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from ingero.cli.output import echo
from ingero.cli.progress import progress_bar
from ingero.store.writing.copying import copy_recording
from ingero.units import format_bytes, format_moment


@click.command("copy")
@click.argument("source", metavar="A.db", type=click.Path(path_type=Path))
@click.argument("output", metavar="B.db", type=click.Path(path_type=Path))
def command(source: Path, output: Path) -> None:
    """Copy a recording, even while it is being written.

    While A.db is being written, its newest data is in a log beside it (A.db-wal). cp copies the two at different times,
    so its copy lacks the end or is damaged; this command writes one consistent state into one file. A.db is only read.
    """
    if output.is_dir():
        output /= source.name
    with progress_bar() as progress:
        copied = copy_recording(source, output, progress=lambda share: progress(source.name, share))
    until = f", recorded until {format_moment(copied.end_ns)}" if copied.end_ns is not None else ""
    echo(f"{output} ({format_bytes(output.stat().st_size)}){until}{'; recording goes on' if copied.was_live else ''}")
