"""`ingero version`."""

from __future__ import annotations

import rich_click as click

from ingero.build_info import build_info


@click.command("version")
def command() -> None:
    """Show version, commit and build date."""
    info = build_info()
    click.echo(f"ingero {info.version} (commit {info.commit}, built {info.date})")
