"""`ingero version`."""

from __future__ import annotations

import rich_click as click

from ingero.build_info import build_info
from ingero.cli.output import echo


@click.command("version")
def command() -> None:
    """Show version, commit and build date."""
    info = build_info()
    echo(f"ingero {info.version} (commit {info.commit}, built {info.date})")
