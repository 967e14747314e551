"""`ingero dashboard`: a recording in the browser."""

from __future__ import annotations

import os
from pathlib import Path

import rich_click as click

from ingero.cli.fleet_options import FleetFlags, FleetOptionError
from ingero.cli.node_server import ServerOptions, serve_recording, start_listening
from ingero.cli.output import echo
from ingero.cli.recording_path import recording_path
from ingero.cli.service_manager import ServiceManager
from ingero.cli.switches import configured
from ingero.serve.addresses import Address

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("dashboard")
@click.option("--db", "-d", type=_FILE, help="Database (default ~/.ingero/ingero.db).")
@configured("dashboard")
@click.option(
    "--nodes",
    multiple=True,
    metavar="N,N",
    help="Show the lost time of these nodes, as of `query --nodes`, instead of a recording.",
)
@click.option("--ca-cert", type=_FILE, metavar="F", help="With --nodes: who signs their certificates, PEM.")
@click.option("--client-cert", type=_FILE, metavar="F", help="With --nodes: this client's certificate, PEM.")
@click.option("--client-key", type=_FILE, metavar="F", help="With --nodes: its key, PEM.")
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
    nodes: tuple[str, ...],
    ca_cert: Path | None,
    client_cert: Path | None,
    client_key: Path | None,
) -> None:
    """Show a recording in the browser, also while it is being written.

    INGERO_DASHBOARD_TOKEN, or --token-file: who wants to read must know it. Where other machines reach the address,
    either that or --client-ca is needed. It also answers `query --nodes` and `explain --nodes` of other machines.

    With --nodes: when which of many nodes lost how much, worst first, and all views of each. Whoever reads the page
    reads them with this client's certificate, or with the token in INGERO_FLEET_TOKEN.
    """
    options = ServerOptions(
        address=addr,
        certificate=tls_cert,
        key=tls_key,
        client_ca=client_ca,
        token_file=token_file,
        has_tls=not no_tls,
        is_trusted_network=trusted_network,
        hosts=host or (),
    )
    fleet = FleetFlags(nodes=nodes, ca_cert=ca_cert, client_cert=client_cert, client_key=client_key)
    if fleet != FleetFlags():
        # nodes in ingero.yaml alone show nothing: what a node serves would be what all of them have
        if not nodes:
            raise FleetOptionError("no nodes are named", hint="--nodes gpu-01,gpu-02")
        from ingero.cli.fleet_dashboard import serve_nodes  # noqa: PLC0415  # most serve one recording

        serve_nodes(fleet, options, db=db, environ=os.environ)
        return
    path = recording_path(db, os.environ, uid=os.getuid())
    listening = start_listening(options, os.environ)
    where = f"{path} at {listening.exposure.url}"
    echo(f"{where}   (Ctrl-C ends)", err=True)
    for line in listening.lines:
        echo(f"  {line}", err=True)
    serve_recording(path, listening, on_ready=lambda: ServiceManager(os.environ).ready(where))
