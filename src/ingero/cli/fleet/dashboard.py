"""`ingero dashboard --nodes`: many nodes in the browser."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ingero.cli.fleet.options import Fleet, FleetFlags, fleet_of
from ingero.cli.fleet.output import say_known
from ingero.cli.node_server import ServerOptions, start_listening
from ingero.cli.output import echo
from ingero.cli.service.manager import ServiceManager

if TYPE_CHECKING:
    from ingero.fleet.known_nodes import Known

_NODE_TIMEOUT = "30s"  # as of `explain`: a node may have to diagnose first


def serve_nodes(flags: FleetFlags, options: ServerOptions, *, db: Path | None, environ: Mapping[str, str]) -> None:
    """Serves the page of the nodes until it is interrupted.

    Raises:
        IngeroError: the options do not go together, or the server would be open to strangers.
    """
    fleet = fleet_of(flags, db=db, timeout=_NODE_TIMEOUT, environ=environ, uid=os.getuid())
    assert fleet is not None  # nodes are named
    listening = start_listening(options, environ)
    from ingero.fleet.page_server import serve_fleet  # noqa: PLC0415  # after the check for missing packages

    where = f"{len(fleet.nodes):,} nodes at {listening.exposure.url}"
    echo(f"{where}   (Ctrl-C ends)", err=True)
    for line in listening.lines:
        echo(f"  {line}", err=True)
    ServiceManager(environ).ready(where)
    serve_fleet(fleet.reach, listening.exposure, listening.socket, listening.context, _report_pins(fleet))


def _report_pins(fleet: Fleet) -> Callable[[], None]:
    """A function that prints newly pinned nodes, each once."""
    reported: set[tuple[str, Known]] = set()

    def say() -> None:
        say_known(fleet, but=reported)
        reported.update(fleet.reach.access.known.kept.items() if fleet.reach.access.known else ())

    return say
