"""The server of a node: run by `ingero dashboard`, or beside a recording in an unprivileged process."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ingero.cli.config.option_table import SECTIONS, OptionError
from ingero.cli.config.settings import TraceSettings, resolve_section
from ingero.cli.fleet.options import FleetFlags, relay_access
from ingero.cli.output import echo
from ingero.errors import IngeroError
from ingero.program import command
from ingero.sandbox import rights
from ingero.serve.http.addresses import Address
from ingero.store.opening.locations import Owner

if TYPE_CHECKING:
    import socket
    import ssl

    from ingero.fleet.relay_server import RelayService
    from ingero.serve.dashboard.app import AddMore
    from ingero.serve.dashboard.exposure import Exposure

_PACKAGES = ("fastapi", "uvicorn", "cryptography")
SERVER_FIELDS = tuple(option.field for option in SECTIONS["dashboard"] if option.name != "addr")
_NAME = "ingero-serve"
_START_S = 30.0  # half a second of imports; more on a busy machine
_END_S = 5.0  # an answer in progress has 3 s
_MAX_REPORT_BYTES = 64 << 10

_log = logging.getLogger(__name__)


class NotInstalledError(IngeroError):
    """A package that the server needs is not installed."""


class ServerEndedError(IngeroError):
    """The server ended before it listened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of a server: its address, and the clients that it admits.

    relay: lists of the nodes that it queries for its clients, a line each; relay_flags: how it queries them.
    """

    address: Address
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    token_file: Path | None = None
    has_tls: bool = True
    is_trusted_network: bool = False
    hosts: tuple[str, ...] = ()
    relay: str = ""
    relay_flags: FleetFlags = field(default_factory=FleetFlags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """A server that listens but does not serve yet. lines: notes for the user. add_more: addresses of a relay."""

    exposure: Exposure
    socket: socket.socket
    context: ssl.SSLContext | None
    lines: tuple[str, ...]
    add_more: AddMore = lambda _: None


def start_listening(options: ServerOptions, environ: Mapping[str, str]) -> Listening:
    """Checks that only intended clients are admitted, and listens.

    Raises:
        IngeroError: a package is missing, anyone could connect, a file cannot be used, or the address is in use.
    """
    if not all(map(find_spec, _PACKAGES)):
        raise NotInstalledError(
            "the dashboard needs packages that are not installed", hint="pip install 'ingero[dashboard]'"
        )
    from ingero.serve.dashboard.exposure import TOKEN_VARIABLE, Exposure, check_exposure  # noqa: PLC0415  # as above
    from ingero.serve.dashboard.server import answering_to, certificate_of, server_context  # noqa: PLC0415  # as above
    from ingero.serve.http.addresses import listen  # noqa: PLC0415  # with what follows 0.4 s, which --help need not wait for
    from ingero.serve.http.token_file import read_token  # noqa: PLC0415  # as above

    exposure = Exposure(
        address=options.address,
        has_tls=options.has_tls,
        certificate=options.certificate,
        key=options.key,
        client_ca=options.client_ca,
        token=read_token(options.token_file) if options.token_file else environ.get(TOKEN_VARIABLE, ""),
        hosts=options.hosts,
    )
    check_exposure(exposure, is_trusted_network=options.is_trusted_network)
    relay = _relay(options, exposure, environ) if options.relay else None
    context, lines = None, []
    if exposure.has_tls:
        certificate = certificate_of(exposure)
        context = server_context(exposure, certificate)
        exposure = answering_to(exposure, certificate)
        if options.certificate is None:
            lines.append(f"certificate made on the fly; the browser warns once. SHA-256 {certificate.fingerprint}")
    listening = listen(options.address)
    if not exposure.token and options.client_ca is None:
        lines.append(f"everybody on this host can read it; {TOKEN_VARIABLE} asks for a token")
    bound = replace(exposure, address=replace(options.address, port=listening.getsockname()[1]))
    found = Listening(exposure=bound, socket=listening, context=context, lines=tuple(lines))
    if relay is None:
        return found
    lines.append(f"relays for its clients: what they ask of {relay.allowed} is asked with this host's credentials")
    return replace(found, lines=tuple(lines), add_more=relay.add_to)


def _relay(options: ServerOptions, exposure: Exposure, environ: Mapping[str, str]) -> RelayService:
    """The service that queries other nodes for authenticated clients.

    Raises:
        IngeroError: clients would not be authenticated, or the nodes cannot be queried.
    """
    if not exposure.has_tls:
        raise OptionError("--relay needs TLS: answers of other nodes go through it", hint="leave out --no-tls")
    if not (exposure.token or exposure.client_ca):
        raise OptionError(
            "--relay would let everybody read those nodes",
            hint="let in only clients with certificates: --client-ca FILE, or with a token: --token-file FILE",
        )
    access = relay_access(options.relay_flags, environ, uid=os.getuid())
    from ingero.fleet.access import client_context  # noqa: PLC0415  # most servers are no relays
    from ingero.fleet.relay_list import parse_relay_list  # noqa: PLC0415  # as above
    from ingero.fleet.relay_server import RelayService  # noqa: PLC0415  # as above

    context = client_context(access)
    assert context is not None  # nodes are never asked without TLS
    return RelayService(access=access, context=context, allowed=parse_relay_list(options.relay.splitlines()))


def serve_recording(path: Path, listening: Listening, on_ready: Callable[[], None] = lambda: None) -> None:
    """Serves a recording until a signal ends it. on_ready: called before the first answer."""
    from ingero.serve.dashboard.server import serve  # noqa: PLC0415  # as above
    from ingero.serve.recording_source import RecordingSource  # noqa: PLC0415  # as above
    from ingero.serve.sql_processes import SqlProcesses  # noqa: PLC0415  # as above

    with SqlProcesses() as sql:
        source = RecordingSource(path, may_lag=True, sql=sql)
        on_ready()
        serve(source, listening.exposure, listening.socket, listening.context, listening.add_more)


class ServerBeside:
    """The process that serves a recording while it is made; its failures never end the recording."""

    def __init__(self, pid: int, report: int, again: str) -> None:
        self._pid, self._report, self._again = pid, report, again
        self._has_ended = False

    def say_where(self) -> None:
        """Waits until the server listens, and prints its address on standard error.

        Raises:
            IngeroError: it cannot listen.
        """
        raw, until_s = b"", time.monotonic() + _START_S
        while select.select([self._report], [], [], max(0.0, until_s - time.monotonic()))[0]:
            piece = os.read(self._report, _MAX_REPORT_BYTES)
            if not piece:
                break
            raw += piece
        if not raw:
            raise ServerEndedError("the node's server did not start", hint=self._again)
        said = json.loads(raw)
        if "error" in said:
            raise IngeroError(said["error"], hint=said["hint"])
        for line in said["lines"]:
            echo(line, err=True)

    def report_end(self, _second: object = None) -> None:
        """Logs once that the server has ended, if it has."""
        if not self._has_ended:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._has_ended = True
                code = os.waitstatus_to_exitcode(status)
                outcome = f"signal {-code}" if code < 0 else f"exit code {code}"
                _log.warning("the node's server has ended (%s); the recording goes on. %s", outcome, self._again)

    def end(self) -> None:
        """Ends the server process."""
        os.close(self._report)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._has_ended:
                return
            os.kill(self._pid, number)  # our child, not waited for: its pid cannot be reused
            until_s = time.monotonic() + _END_S
            while not self._has_ended and time.monotonic() < until_s:
                self._has_ended = os.waitpid(self._pid, os.WNOHANG)[0] != 0
                time.sleep(0.02)


def server_options(
    settings: TraceSettings, flags: Mapping[str, str | None], environ: Mapping[str, str]
) -> ServerOptions | None:
    """The options of the server beside a recording; None without --serve. flags: texts of its options, by field.

    Raises:
        IngeroError: a value cannot be used, or one is given and nothing is served.
    """
    if settings.serve is None or not settings.record:
        given = next((field for field, text in flags.items() if text is not None), None)
        if given is not None:
            name = given.replace("_", "-")
            raise OptionError(f"--{name} has no effect without --serve: nothing is served", hint="add --serve :8080")
        return None
    values = resolve_section("dashboard", {**flags, "addr": str(settings.serve)}, environ, uid=os.getuid())
    return ServerOptions(
        address=settings.serve,
        certificate=values["tls_cert"],
        key=values["tls_key"],
        client_ca=values["client_ca"],
        token_file=values["token_file"],
        has_tls=not values["no_tls"],
        is_trusted_network=values["trusted_network"],
        hosts=values["host"] or (),
        relay=values["relay"] or "",
    )


@contextmanager
def serving_beside(
    settings: TraceSettings, options: ServerOptions | None, environ: Mapping[str, str]
) -> Iterator[ServerBeside | None]:
    """Serves the recording in a child process that ends with this one; None where nothing is to be served.

    Enter it before threads are started and files are opened, because the child inherits open files.
    """
    if options is None:
        yield None
        return
    report, report_fd = os.pipe()
    with warnings.catch_warnings():  # of Python 3.12 and later, where threads run: what they hold is not used here
        warnings.simplefilter("ignore", DeprecationWarning)
        parent = os.getpid()
        pid = os.fork()
    if not pid:
        status = 1
        try:
            os.close(report)
            _run(settings, options, environ, report_fd, parent)
            status = 0
        except Exception:
            _log.exception("the node's server has ended")
        finally:
            os._exit(status)  # skips the recorder's own cleanup
    os.close(report_fd)
    again = f"{command('dashboard', '--db', settings.db, '--addr', str(options.address))} serves it"
    server = ServerBeside(pid, report, again)
    try:
        yield server
    finally:
        server.end()


def _run(
    settings: TraceSettings, options: ServerOptions, environ: Mapping[str, str], report_fd: int, parent: int
) -> None:
    from ingero.cli.logs import logging_to  # noqa: PLC0415  # only this process

    os.setsid()  # Ctrl-C is for the recorder
    rights.end_with_parent(_NAME)
    if os.getppid() != parent:
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _keep_off_the_terminal()
    with logging_to(settings.log, debug=settings.debug, owner=settings.owner):
        try:
            listening = start_listening(options, environ)
            _give_up_rights(settings.owner)
        except IngeroError as error:
            _report(report_fd, {"error": str(error), "hint": error.hint})
            return
        except Exception as error:
            _report(
                report_fd, {"error": f"the node's server did not start: {type(error).__name__}: {error}", "hint": ""}
            )
            raise
        where = f"serving at {listening.exposure.url}"
        _report(report_fd, {"lines": [where, *(f"  {line}" for line in listening.lines)]})
        serve_recording(settings.db, listening)


def _keep_off_the_terminal() -> None:
    """Leaves the terminal to the recorder's live view; standard error is kept where it is no terminal."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, *((2,) if os.isatty(2) else ())):
        os.dup2(nothing, number)
    os.close(nothing)


def _give_up_rights(owner: Owner) -> None:
    """Becomes the owner of the recording, without capabilities: enough to read it and renewed certificates."""
    if os.geteuid() == 0 and owner.uid:
        os.setgroups([])
        os.setresgid(owner.gid, owner.gid, owner.gid)
        os.setresuid(owner.uid, owner.uid, owner.uid)
    rights.keep((), is_nobody=False)
    rights.end_with_parent(_NAME)  # the kernel resets it when a process changes its user


def _report(report_fd: int, what: Mapping[str, object]) -> None:
    os.write(report_fd, json.dumps(what).encode())
    os.close(report_fd)
