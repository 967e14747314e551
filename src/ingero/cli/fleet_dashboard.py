"""`ingero dashboard --nodes`: many nodes in the browser."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ingero.cli.fleet_options import FleetFlags, fleet_of
from ingero.cli.node_server import ServerOptions, start_listening
from ingero.cli.output import echo
from ingero.cli.service_manager import ServiceManager

_NODE_TIMEOUT = "30s"  # as of `explain`: a node may have to diagnose first


def serve_nodes(flags: FleetFlags, options: ServerOptions, *, db: Path | None, environ: Mapping[str, str]) -> None:
    """Serves the page of the nodes until it is interrupted.

    Raises:
        IngeroError: the options do not go together, or the server would be open to strangers.
    """
    fleet = fleet_of(flags, db=db, timeout=_NODE_TIMEOUT, environ=environ, uid=os.getuid())
    assert fleet is not None  # nodes are named
    listening = start_listening(options, environ)
    from ingero.fleet.page_server import serve_fleet  # noqa: PLC0415  # after what says which packages are missing

    where = f"{len(fleet.nodes):,} nodes at {listening.exposure.url}"
    echo(f"{where}   (Ctrl-C ends)", err=True)
    for line in listening.lines:
        echo(f"  {line}", err=True)
    ServiceManager(environ).ready(where)
    serve_fleet(fleet.reach, listening.exposure, listening.socket, listening.context)
