"""`ingero dashboard`: a recording in the browser."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import rich_click as click

from ingero.cli.output import echo
from ingero.cli.recording_path import recording_path
from ingero.cli.service_manager import ServiceManager
from ingero.cli.switches import configured
from ingero.errors import IngeroError
from ingero.serve.addresses import Address
from ingero.serve.sql_processes import SqlProcesses

_FILE = click.Path(path_type=Path, dir_okay=False)


class NotInstalledError(IngeroError):
    """What the dashboard needs is not there."""


@click.command("dashboard")
@click.option("--db", "-d", type=_FILE, help="Database (default ~/.ingero/ingero.db).")
@configured("dashboard")
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
) -> None:
    """Show a recording in the browser, also while it is being written.

    INGERO_DASHBOARD_TOKEN, or --token-file: who wants to read must know it. Where other machines reach the address,
    either that or --client-ca is needed. It also answers `query --nodes` and `explain --nodes` of other machines.
    """
    if not all(find_spec(name) for name in ("fastapi", "uvicorn", "cryptography")):
        raise NotInstalledError(
            "the dashboard needs packages that are not installed", hint="pip install 'ingero[dashboard]'"
        )
    from dataclasses import replace  # noqa: PLC0415  # with what follows 0.4 s, which --help need not wait for

    from ingero.serve.addresses import listen  # noqa: PLC0415
    from ingero.serve.dashboard.exposure import TOKEN_VARIABLE, Exposure, check_exposure  # noqa: PLC0415
    from ingero.serve.dashboard.server import answering_to, certificate_of, serve, server_context  # noqa: PLC0415
    from ingero.serve.recording_source import RecordingSource  # noqa: PLC0415
    from ingero.serve.token_file import read_token  # noqa: PLC0415

    exposure = Exposure(
        address=addr,
        has_tls=not no_tls,
        certificate=tls_cert,
        key=tls_key,
        client_ca=client_ca,
        token=read_token(token_file) if token_file else os.environ.get(TOKEN_VARIABLE, ""),
        hosts=host or (),
    )
    check_exposure(exposure, is_trusted_network=trusted_network)
    path = recording_path(db, os.environ, uid=os.getuid())
    context = None
    lines = []
    if exposure.has_tls:
        certificate = certificate_of(exposure)
        context = server_context(exposure, certificate)
        exposure = answering_to(exposure, certificate)
        if tls_cert is None:
            lines.append(f"certificate made on the fly; the browser warns once. SHA-256 {certificate.fingerprint}")
    listening = listen(addr)
    bound = replace(exposure, address=replace(addr, port=listening.getsockname()[1]))
    echo(f"{path} at {bound.url}   (Ctrl-C ends)", err=True)
    if not exposure.token and client_ca is None:
        lines.append(f"everybody on this machine can read it; {TOKEN_VARIABLE} asks for a token")
    for line in lines:
        echo(f"  {line}", err=True)
    with SqlProcesses() as sql:
        ServiceManager(os.environ).ready(f"{path} at {bound.url}")
        serve(RecordingSource(path, may_lag=True, sql=sql), bound, listening, context)
