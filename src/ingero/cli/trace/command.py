"""`ingero trace`: record until the duration has passed, the traced processes have ended, or Ctrl-C."""

from __future__ import annotations

import os

import rich_click as click

from ingero.capture.foreign import readers
from ingero.cli.config.file import CONFIG_VARIABLE
from ingero.cli.config.settings import TraceSettings, resolve
from ingero.cli.config.switches import click_options, section_options
from ingero.cli.logs import logging_to
from ingero.cli.node_server import SERVER_FIELDS, server_options, serving_beside
from ingero.cli.trace.incident_command import open_incident_command, start_and_announce

_CONFIG = click.Option(
    ["--config"], metavar="F", help="Read options from this file. Default: ~/.config/ingero/ingero.yaml, else "
    "/etc/ingero/ingero.yaml."
)  # fmt: skip


@click.command("trace", params=[*click_options(), *section_options("dashboard", without=("addr",)), _CONFIG])
def command(**flags: str | None) -> None:
    """Record what GPU processes do, and show it live.

    Needs root or capabilities (`ingero check` says which). Every option may also be set as INGERO_NAME in the
    environment or as name: value in ingero.yaml. Turn a switch on with --name or --name=true, off with --no-name or
    --name=false.

    Under systemd, SIGHUP rereads ingero.yaml; elsewhere it ends the recording.
    """
    server_flags = {field: flags.pop(field) for field in SERVER_FIELDS}

    def settings_now() -> TraceSettings:
        return resolve(flags, os.environ, uid=os.getuid())

    settings = settings_now()
    config = flags.get("config")
    environ = {**os.environ, **({CONFIG_VARIABLE: config} if config else {})}
    serving = server_options(settings, server_flags, environ)
    # forked before the rest is imported: memory that the agent touches later is copied for them
    with (
        serving_beside(settings, serving, os.environ) as server,
        open_incident_command(settings) as on_incident,
        readers.nursery() as nursery,
        logging_to(settings.log, debug=settings.debug, owner=settings.owner),
    ):
        from ingero.cli.trace.recording import record, restart  # noqa: PLC0415  # as above

        if server:
            server.say_where()
        if on_incident:
            start_and_announce(on_incident, settings)
        is_to_restart = record(settings, nursery, settings_now, [server.report_end] if server else [], on_incident)
    if is_to_restart:
        restart()
