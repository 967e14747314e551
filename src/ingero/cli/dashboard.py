"""`ingero dashboard`: a recording in the browser."""

from __future__ import annotations

import os
from pathlib import Path

import rich_click as click

from ingero.cli.config.switches import configured
from ingero.cli.fleet.options import FleetFlags, FleetOptionError
from ingero.cli.node_server import ServerOptions, serve_recording, start_listening
from ingero.cli.output import echo
from ingero.cli.recording_path import recording_path
from ingero.cli.service.manager import ServiceManager
from ingero.serve.http.addresses import Address

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("dashboard")
@click.option("--db", "-d", type=_FILE, metavar="F", help="Database file (default ~/.ingero/ingero.db).")
@configured("dashboard")
@click.option(
    "--nodes",
    multiple=True,
    metavar="N,N",
    help="Show the lost time of these nodes instead of a recording; written as for `query --nodes`.",
)
@click.option("--via", multiple=True, metavar="N,N", help="With --nodes: query them through these relays.")
@click.option(
    "--ca-cert", type=_FILE, metavar="F", help="With --nodes or --relay: certificate authority of the nodes, PEM."
)
@click.option(
    "--client-cert", type=_FILE, metavar="F", help="With --nodes or --relay: client certificate for nodes, PEM."
)
@click.option("--client-key", type=_FILE, metavar="F", help="With --nodes or --relay: key of --client-cert, PEM.")
@click.option(
    "--pin",
    is_flag=True,
    help="With --nodes or --relay: trust each node by the certificate that it presented first (~/.ingero/known_nodes).",
)
def command(
    db: Path | None,
    addr: Address,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_ca: Path | None,
    token_file: Path | None,
    no_tls: bool,
    trusted_network: bool,
    host: tuple[str, ...] | None,
    relay: str | None,
    nodes: tuple[str, ...],
    via: tuple[str, ...],
    ca_cert: Path | None,
    client_cert: Path | None,
    client_key: Path | None,
    pin: bool,
) -> None:
    """Show a recording in the browser.

    It works while the recording is being written. Set INGERO_DASHBOARD_TOKEN or --token-file to require a token; where
    other hosts can reach the address, that or --client-ca is required. It also answers `query --nodes` and `explain
    --nodes`.

    With --relay, clients can also query other nodes through this one (`query --via`): every client admitted here can
    read those.

    With --nodes, it shows which of many nodes lost how much time and when, worst first, and all views of each. Every
    reader of the page uses this client's certificate, or the token in INGERO_FLEET_TOKEN.
    """
    fleet = FleetFlags(nodes=nodes, via=via, ca_cert=ca_cert, client_cert=client_cert, client_key=client_key, pin=pin)
    options = ServerOptions(
        address=addr,
        certificate=tls_cert,
        key=tls_key,
        client_ca=client_ca,
        token_file=token_file,
        has_tls=not no_tls,
        is_trusted_network=trusted_network,
        hosts=host or (),
        relay="" if nodes or not relay else relay,  # the page of many nodes is no node
        relay_flags=fleet,
    )
    if nodes or via or (fleet != FleetFlags() and not relay):
        # nodes in ingero.yaml alone show nothing: what a node serves would be what all of them have
        if not nodes:
            raise FleetOptionError("no nodes are named", hint="--nodes gpu-01,gpu-02")
        from ingero.cli.fleet.dashboard import serve_nodes  # noqa: PLC0415  # most serve one recording

        serve_nodes(fleet, options, db=db, environ=os.environ)
        return
    path = recording_path(db, os.environ, uid=os.getuid())
    listening = start_listening(options, os.environ)
    where = f"{path} at {listening.exposure.url}"
    echo(f"{where}   (Ctrl-C ends)", err=True)
    for line in listening.lines:
        echo(f"  {line}", err=True)
    serve_recording(path, listening, on_ready=lambda: ServiceManager(os.environ).ready(where))
