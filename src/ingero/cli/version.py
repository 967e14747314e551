"""`ingero version`."""

from __future__ import annotations

import os
import sys

import rich_click as click

from ingero import __version__
from ingero.build_info import build_info
from ingero.cli.output import echo

EXIT_NEWER = 1


@click.command("version")
@click.option("--check", is_flag=True, help="Also check whether a newer version exists (update-url in ingero.yaml).")
def command(check: bool) -> None:
    """Show version, commit and build date.

    Nothing leaves this host without --check or `update-check: true` in ingero.yaml.
    """
    info = build_info()
    echo(f"ingero {info.version} (commit {info.commit}, built {info.date})")
    if not check:
        return
    from ingero.cli.update.notice import update_url  # noqa: PLC0415  # only whoever asks needs what asks
    from ingero.cli.update.source import is_newer, newest_version  # noqa: PLC0415  # as above
    from ingero.store.opening.locations import invoking_user  # noqa: PLC0415  # as above

    newest = newest_version(update_url(os.environ, invoking_user(os.environ, uid=os.getuid())))
    if is_newer(newest, __version__):
        echo(f"{newest} is newer")
        sys.exit(EXIT_NEWER)
    echo(f"the newest release is {newest}")
