"""`ingero trace`: record until the duration has passed, the targets have ended, or Ctrl-C."""

from __future__ import annotations

import os

import rich_click as click

from ingero.capture import foreign
from ingero.cli.logs import logging_to
from ingero.cli.node_server import serving_beside
from ingero.cli.settings import resolve
from ingero.cli.switches import click_options

_CONFIG = click.Option(
    ["--config"], metavar="F", help="Read options from this file. Default: ~/.config/ingero/ingero.yaml, else "
    "/etc/ingero/ingero.yaml."
)  # fmt: skip


@click.command("trace", params=[*click_options(), _CONFIG])
def command(**flags: str | None) -> None:
    """Record what GPU processes do, and show it while it happens.

    Every option may also be set as INGERO_NAME in the environment or as name: value in ingero.yaml. A switch is
    turned on by --name or --name=true, and off by --no-name or --name=false.
    """
    settings = resolve(flags, os.environ, uid=os.getuid())
    # forked before the rest is imported: what they share with the agent is theirs as soon as it touches it
    with (
        serving_beside(settings, os.environ) as server,
        foreign.nursery() as nursery,
        logging_to(settings.log, debug=settings.debug, owner=settings.owner),
    ):
        from ingero.cli.trace_recording import record  # noqa: PLC0415  # as above

        if server:
            server.say_where()
        record(settings, nursery, on_second=[server.look] if server else [])
