"""`ingero completion`: the script that lets bash, zsh and fish complete commands, options and their values."""

from __future__ import annotations

import rich_click as click
from click.shell_completion import get_completion_class

from ingero.cli.command_group import Words
from ingero.cli.main import COMPLETE_VARIABLE, PROGRAM, cli

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=Words(SHELLS))
def command(shell: str) -> None:
    """Print the shell completion script for bash, zsh or fish.

    It completes commands, options and values. The script calls ingero at each Tab, so it is never out of date.
    """
    script = get_completion_class(shell)
    assert script is not None  # the choice of the argument
    click.echo(script(cli, {}, PROGRAM, COMPLETE_VARIABLE).source())
