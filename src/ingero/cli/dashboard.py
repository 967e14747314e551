"""`ingero dashboard`: a recording in the browser."""

from __future__ import annotations

import os
from pathlib import Path

import rich_click as click

from ingero.cli.fleet_options import FleetFlags, FleetOptionError
from ingero.cli.node_server import ServerOptions, serve_recording, start_listening
from ingero.cli.output import echo
from ingero.serve.addresses import parse_address
from ingero.store.locations import database_path

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("dashboard")
@click.option("--db", "-d", type=_FILE, help="Database (default ~/.ingero/ingero.db).")
@click.option(
    "--addr", default="127.0.0.1:8080", metavar="HOST:PORT", show_default=True, help="Where to listen; port 0: any."
)
@click.option("--tls-cert", type=_FILE, metavar="F", help="Certificate, PEM (default: one made on the fly).")
@click.option("--tls-key", type=_FILE, metavar="F", help="Its key, PEM.")
@click.option("--client-ca", type=_FILE, metavar="F", help="Let in only clients with a certificate of this authority.")
@click.option(
    "--token-file", type=_FILE, metavar="F", help="File with the token that readers must show; nobody else may read it."
)
@click.option("--no-tls", is_flag=True, help="Plain HTTP; on addresses of this machine.")
@click.option("--trusted-network", is_flag=True, help="With a token, allow --no-tls on other addresses, too.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Answer to this name, too, e.g. a proxy's.")
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
    addr: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_ca: Path | None,
    token_file: Path | None,
    no_tls: bool,
    trusted_network: bool,
    hosts: tuple[str, ...],
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
        address=parse_address(addr),
        certificate=tls_cert,
        key=tls_key,
        client_ca=client_ca,
        token_file=token_file,
        has_tls=not no_tls,
        is_trusted_network=trusted_network,
        hosts=hosts,
    )
    fleet = FleetFlags(nodes=nodes, ca_cert=ca_cert, client_cert=client_cert, client_key=client_key)
    if fleet != FleetFlags():
        # nodes in ingero.yaml alone show nothing: what a node serves would be what all of them have
        if not nodes:
            raise FleetOptionError("no nodes are named", hint="--nodes gpu-01,gpu-02")
        from ingero.cli.fleet_dashboard import serve_nodes  # noqa: PLC0415  # most serve one recording

        serve_nodes(fleet, options, db=db, environ=os.environ)
        return
    listening = start_listening(options, os.environ)
    path = database_path(db, os.environ, uid=os.getuid())
    echo(f"{path} at {listening.exposure.url}   (Ctrl-C ends)", err=True)
    for line in listening.lines:
        echo(f"  {line}", err=True)
    serve_recording(path, listening)
