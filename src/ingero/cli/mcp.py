"""`ingero mcp`: lets AI assistants ask a recording."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click
from click import get_current_context
from click.core import ParameterSource

from ingero.cli.config.switches import configured
from ingero.cli.fleet.options import Fleet, FleetFlags, configured_fleet, fleet_options
from ingero.cli.output import echo
from ingero.cli.recording_path import recording_path
from ingero.errors import IngeroError
from ingero.program import command as own_command
from ingero.serve.sql_processes import SqlProcesses

if TYPE_CHECKING:
    from ingero.discover.checks import CheckRow
    from ingero.fleet.assistant import FleetQuestions
    from ingero.serve.http.addresses import Address
    from ingero.serve.http.tls import Certificate
    from ingero.serve.mcp.server import IngeroServer
    from ingero.serve.mcp.tools import Demo

_PACKAGES = frozenset({"mcp", "mcp_types", "uvicorn", "cryptography", "pydantic", "anyio", "starlette"})


# The folder is named, because interpreters of an image or of a release's tree do not know it by themselves.
_IMPORTED_FROM = Path(__file__).resolve().parents[2]
_CHECK = """\
import json, sys
sys.path.insert(0, sys.argv[1])
sys.argv = sys.argv[2:]
from ingero.cli.check.machine import as_json, gather
from ingero.discover.checks import all_rows
print(json.dumps(as_json(all_rows(gather()))))
"""
_CHECK_S = 30.0  # it takes ten at most, and longer where it has no CPU


class NotInstalledError(IngeroError):
    """The MCP SDK is not installed."""


class OptionsError(IngeroError):
    """Options that do not go together."""


@click.command("mcp")
@click.option(
    "--db",
    "-d",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="F",
    help="Database file (default ~/.ingero/ingero.db).",
)
@click.option("--http", metavar="[HOST]:PORT", help="Listen on HTTPS instead of standard input and output.")
@configured("mcp")
@fleet_options
def command(
    db: Path | None,
    http: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    test_report: Path | None,
    fleet: FleetFlags,
) -> None:
    """Serve a recording to AI assistants (MCP).

    Serves on standard input and output, as MCP clients expect. It only reads, and needs no root. With --nodes, or nodes
    in ingero.yaml, the tools query_fleet and fleet_nodes query those as well. With --http it listens on this host, TLS
    1.3 only; other addresses require a token in INGERO_MCP_TOKEN.
    """
    if http is None and not _is_on_the_command_line("tls_cert", "tls_key"):
        tls_cert = tls_key = None  # those of ingero.yaml are for --http
    if (tls_cert is None) != (tls_key is None) or (tls_cert is not None and http is None):
        raise OptionsError(
            "--tls-cert, --tls-key and --http belong together", hint=f"{own_command('mcp', '--http', ':8443')} ..."
        )
    path = recording_path(db, os.environ, uid=os.getuid())
    nodes = configured_fleet(fleet, environ=os.environ, uid=os.getuid())
    try:
        with SqlProcesses() as sql:
            if http is None:
                if sys.stdin.isatty():
                    echo("waiting for an MCP client on standard input; examples/mcp has configurations", err=True)
                _server(path, test_report, nodes, sql).run("stdio")
            else:
                _serve_http(http, tls_cert, tls_key, path, lambda: _server(path, test_report, nodes, sql))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise NotInstalledError(f"the MCP server needs {error.name}", hint="pip install 'ingero[mcp]'") from error
    except KeyboardInterrupt:
        pass


def _is_on_the_command_line(*parameters: str) -> bool:
    context = get_current_context()
    return any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in parameters)


def _server(path: Path, test_report: Path | None, nodes: Fleet | None, sql: SqlProcesses) -> IngeroServer:
    from ingero.serve.mcp.server import make_server  # noqa: PLC0415  # half a second, with its libraries
    from ingero.serve.mcp.tools import Surroundings  # noqa: PLC0415  # as above
    from ingero.serve.recording_source import RecordingSource  # noqa: PLC0415  # as above

    around = Surroundings(
        check=_check, demo=_demo(), clock=time.time_ns, test_report=test_report, fleet=_questions(nodes)
    )
    return make_server(RecordingSource(path, sql=sql), around)


def _questions(nodes: Fleet | None) -> FleetQuestions | None:
    if nodes is None:
        return None
    from ingero.fleet.assistant import FleetQuestions  # noqa: PLC0415  # only with nodes

    return FleetQuestions(nodes=nodes.nodes, access=nodes.reach.access, via=nodes.reach.via, skew_ns=nodes.skew_ns)


def _check() -> Sequence[CheckRow]:
    """By a process of its own: this one has threads, and so cannot make those that read for it."""
    from ingero.discover.checks import row_of  # noqa: PLC0415  # as above

    command = [sys.executable, "-c", _CHECK, str(_IMPORTED_FROM), *sys.argv]
    done = subprocess.run(  # not in this folder, from which Python would import what lies there
        command, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=_CHECK_S, check=True
    )
    return [row_of(row) for row in json.loads(done.stdout)["rows"]]


def _demo() -> Demo:
    from ingero.serve.mcp.tools import Demo  # noqa: PLC0415  # see _server

    def record_scenario(name: str, path: Path) -> str:
        from ingero.demo.labeled_scenarios import SCENARIOS, record  # noqa: PLC0415  # numpy; only when asked

        record(SCENARIOS[name], path)
        return SCENARIOS[name].cause

    return Demo(titles=_scenario_titles, record=record_scenario)


def _scenario_titles() -> dict[str, str]:
    from ingero.demo.labeled_scenarios import SCENARIOS  # noqa: PLC0415  # as above

    return {name: scenario.title for name, scenario in SCENARIOS.items()}


def _serve_http(
    text: str, tls_cert: Path | None, tls_key: Path | None, database: Path, make: Callable[[], IngeroServer]
) -> None:
    from ingero.serve.http.addresses import listen, parse_address  # noqa: PLC0415  # only here
    from ingero.serve.http.tls import read_certificate, tls_context  # noqa: PLC0415  # only here
    from ingero.serve.mcp.http import PATH, TOKEN_VARIABLE, check_token, serve  # noqa: PLC0415  # only here

    address, token = parse_address(text), os.environ.get(TOKEN_VARIABLE, "")
    check_token(token, address)
    given = read_certificate(tls_cert, tls_key) if tls_cert and tls_key else None
    certificate = given or _issue(address)
    context = tls_context(certificate)
    with listen(address) as listening:
        port = listening.getsockname()[1]
        echo(f"listening on https://{address.url_host}:{port}{PATH}", err=True)
        with nullcontext() if given else _published(certificate, database.with_name(f"{database.name}.mcp.pem")):
            if not token:
                echo(f"anybody on this host may query it: {TOKEN_VARIABLE} sets a token", err=True)
            serve(make(), listening, address, context, token)


def _issue(address: Address) -> Certificate:
    from ingero.serve.http.tls import self_signed  # noqa: PLC0415  # only here

    return self_signed(address.names, now=datetime.now(timezone.utc))


@contextmanager
def _published(certificate: Certificate, path: Path) -> Iterator[None]:
    """Says how clients can check that they talk to this server: beside the database lies what they may trust."""
    from ingero.serve.http.tls import published  # noqa: PLC0415  # only here

    echo(f"its certificate was made just now, SHA-256 {certificate.fingerprint}", err=True)
    with published(certificate, path) as is_there:
        if is_there:
            echo(f"clients can trust it by {path} (NODE_EXTRA_CA_CERTS, SSL_CERT_FILE)", err=True)
        yield
