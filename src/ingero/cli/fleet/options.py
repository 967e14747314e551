"""Options of the commands that query many nodes: their names, how to reach them, and their timeout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from ingero.cli.config.file import CONFIG_VARIABLE, find_config
from ingero.cli.config.given import Rank, given_values, value_of
from ingero.cli.config.option_table import FLEET, SECTIONS, parse_switch
from ingero.errors import IngeroError
from ingero.store.opening.locations import DATABASE_VARIABLE, invoking_user
from ingero.units import parse_duration_s

if TYPE_CHECKING:
    from ingero.fleet.access import Access
    from ingero.fleet.fan_out import Reach
    from ingero.fleet.known_nodes import KnownNodes
    from ingero.fleet.node_lists import Node
    from ingero.fleet.relays import Via

TOKEN_VARIABLE = "INGERO_FLEET_TOKEN"
TIMEOUT = "5s"  # of a node
SKEW = "10ms"  # clocks that differ by more get a warning where rows of nodes are combined
MERGE_SKEW = "100ms"  # where recordings are merged, which may have been made without a common clock
_NO_TIMEOUT_S = 3600.0  # where a timeout of 0 asks for no end
_FILE = click.Path(path_type=Path, dir_okay=False)

_Command = TypeVar("_Command", bound=Callable[..., Any])


class FleetOptionError(IngeroError):
    """Options for many nodes that exclude each other."""


class NotInstalledError(IngeroError):
    """The package that queries nodes is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The nodes to query, and how to reach them. origin: the file that names them; "": the command line.

    skew_ns: clocks that are off by more get a warning.
    """

    reach: Reach
    origin: str
    skew_ns: int

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes to query."""
        return self.reach.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFlags:
    """The values of the options for many nodes on the command line."""

    nodes: tuple[str, ...] = ()
    via: tuple[str, ...] = ()
    retry_directly: bool = False
    ca_cert: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    token_file: Path | None = None
    pin: bool = False
    no_tls: bool = False
    trusted_network: bool = False
    clock_skew_threshold: str | None = None


def fleet_options(command: _Command) -> _Command:
    """Adds the options; the command gets their values as `fleet`, a FleetFlags."""

    def wrapped(*arguments: Any, **values: Any) -> Any:
        flags = FleetFlags(**{name: values.pop(name) for name in FleetFlags.__dataclass_fields__})
        return command(*arguments, fleet=flags, **values)

    wrapped.__doc__ = command.__doc__
    wrapped.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]  # click's own
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]  # click calls it with names


_HELP = {option.name: option.help for option in SECTIONS[FLEET]}
_OPTIONS = (
    click.option("--nodes", multiple=True, metavar="N,N", help=_HELP["nodes"]),
    click.option("--via", multiple=True, metavar="N,N", help=_HELP["via"]),
    click.option("--retry-directly", is_flag=True, help=_HELP["retry-directly"]),
    click.option("--ca-cert", type=_FILE, metavar="F", help=_HELP["ca-cert"]),
    click.option("--client-cert", type=_FILE, metavar="F", help=_HELP["client-cert"]),
    click.option("--client-key", type=_FILE, metavar="F", help=_HELP["client-key"]),
    click.option("--token-file", type=_FILE, metavar="F", help=_HELP["token-file"]),
    click.option("--pin", is_flag=True, help=_HELP["pin"]),
    click.option("--no-tls", is_flag=True, help="Connect to nodes over plain HTTP; on this host only."),
    click.option("--trusted-network", is_flag=True, help="Allow --no-tls to other hosts as well."),
    click.option(
        "--clock-skew-threshold", metavar="D",
        help=f"Warn about nodes whose clocks are off by more than this. Default: {SKEW}, for recordings {MERGE_SKEW}.",
    ),
)  # fmt: skip


def fleet_of(
    flags: FleetFlags,
    *,
    db: Path | None,
    timeout: str | None,
    skew: str = SKEW,
    environ: Mapping[str, str],
    uid: int,
) -> Fleet | None:
    """The nodes to query; None: query a recording, which was named, or no nodes are. skew: see `configured_fleet`.

    Raises:
        IngeroError: the options do not go together, or cannot be used.
    """
    if flags.nodes and db is not None:
        raise FleetOptionError("--nodes and --db exclude each other", hint="ask nodes, or a recording")
    names_recording = db is not None or bool(environ.get(DATABASE_VARIABLE))
    if names_recording and not flags.nodes:
        refuse_without_nodes(flags)
        return None
    return configured_fleet(flags, timeout=timeout, skew=skew, environ=environ, uid=uid)


def configured_fleet(
    flags: FleetFlags, *, timeout: str | None = None, skew: str = SKEW, environ: Mapping[str, str], uid: int
) -> Fleet | None:
    """The nodes of the command line or configuration, even where a recording is named, too; None: there are none.

    skew: clocks that are off by more get a warning, unless the command line sets another threshold.

    Raises:
        IngeroError: the options do not go together, or cannot be used.
    """
    configured_by, given = _configured(environ, uid=uid)
    lists = list(flags.nodes) or given.get("nodes", "").splitlines()
    if not lists:
        refuse_without_nodes(flags)
        return None
    if not find_spec("httpcore2"):
        raise NotInstalledError("asking nodes needs the package httpcore2", hint="pip install 'ingero[fleet]'")
    from ingero.fleet.access import check_access, client_context  # noqa: PLC0415  # needless for a recording
    from ingero.fleet.discovery.ask import discovery  # noqa: PLC0415  # as above
    from ingero.fleet.fan_out import Reach  # noqa: PLC0415  # as above
    from ingero.fleet.node_lists import parse_nodes  # noqa: PLC0415  # as above

    discover = discovery(environ, invoking_user(environ, uid=uid).home)
    nodes = parse_nodes(lists, discover)
    via = _via(flags, given, nodes, lambda text: parse_nodes([text], discover))
    access = _access(flags, given, environ, uid=uid)
    check_access(access, via.relays if via else nodes)
    reach = Reach(
        nodes=nodes,
        access=access,
        context=client_context(access),
        timeout_s=parse_duration_s(timeout or TIMEOUT) or _NO_TIMEOUT_S,
        via=via,
    )
    skew_ns = int(parse_duration_s(flags.clock_skew_threshold or skew) * 1e9)
    return Fleet(reach=reach, origin="" if flags.nodes else configured_by, skew_ns=skew_ns)


def _via(
    flags: FleetFlags,
    given: Mapping[str, str],
    nodes: tuple[Node, ...],
    parse: Callable[[str], tuple[Node, ...]],
) -> Via | None:
    """The relays, a level each; None: there are none, or the command line asks without TLS, which relays never do."""
    relays = flags.via or (() if flags.no_tls else tuple(given.get("via", "").splitlines()))
    levels = [level for level in relays if level.strip()]  # --via '' asks directly whatever the file says
    if not levels:
        if flags.retry_directly:
            raise FleetOptionError("--retry-directly has no effect without --via", hint="--via relay-01,relay-02")
        return None
    if flags.no_tls:
        raise FleetOptionError("--via and --no-tls exclude each other: relays speak TLS", hint="leave out --no-tls")
    from ingero.fleet.relays import via_of  # noqa: PLC0415  # needless for a recording

    retries = flags.retry_directly or parse_switch(given.get("retry-directly", "false"))
    return via_of(nodes, [parse(level) for level in levels], retries_directly=retries)


def relay_access(flags: FleetFlags, environ: Mapping[str, str], *, uid: int) -> Access:
    """The credentials with which a relay queries nodes, and how it authenticates these.

    Raises:
        IngeroError: the options do not go together, or cannot be used.
    """
    if not find_spec("httpcore2"):
        raise NotInstalledError("asking nodes needs the package httpcore2", hint="pip install 'ingero[fleet]'")
    from ingero.fleet.access import check_access  # noqa: PLC0415  # needless for most servers

    access = _access(flags, _configured(environ, uid=uid)[1], environ, uid=uid)
    check_access(access, ())
    return access


def refuse_without_nodes(flags: FleetFlags) -> None:
    """Refuses options for many nodes where no nodes are named.

    Raises:
        FleetOptionError: there is such an option.
    """
    if flags != FleetFlags():
        raise FleetOptionError("no nodes are named", hint="--nodes gpu-01,gpu-02, or fleet.nodes in ingero.yaml")


def known_nodes_path(environ: Mapping[str, str], *, uid: int) -> Path:
    """The path of the file with the pinned certificates of nodes."""
    from ingero.fleet.known_nodes import FILE_NAME  # noqa: PLC0415  # needless for a recording

    return invoking_user(environ, uid=uid).home / ".ingero" / FILE_NAME


def _known(environ: Mapping[str, str], *, uid: int) -> KnownNodes:
    from ingero.fleet.known_nodes import KnownNodes  # noqa: PLC0415  # as above

    owner = invoking_user(environ, uid=uid)
    return KnownNodes(known_nodes_path(environ, uid=uid), owner if uid == 0 else None)


def _access(flags: FleetFlags, given: Mapping[str, str], environ: Mapping[str, str], *, uid: int) -> Access:
    from ingero.fleet.access import Access  # noqa: PLC0415  # as above
    from ingero.serve.http.token_file import read_token  # noqa: PLC0415  # as above

    def file(flag: Path | None, key: str) -> Path | None:
        return flag or (Path(given[key]).expanduser() if key in given and not flags.no_tls else None)

    client_cert, client_key = flags.client_cert, flags.client_key
    if client_cert is None and client_key is None:  # a pair is of one source
        client_cert, client_key = file(None, "client-cert"), file(None, "client-key")
    token_file = flags.token_file
    if token_file is None and not environ.get(TOKEN_VARIABLE) and "token-file" in given:
        token_file = Path(given["token-file"]).expanduser()
    is_pinned = flags.pin or (not flags.ca_cert and not flags.no_tls and parse_switch(given.get("pin", "false")))
    return replace(
        Access(),
        ca_cert=flags.ca_cert if is_pinned else file(flags.ca_cert, "ca-cert"),
        client_cert=client_cert,
        client_key=client_key,
        token=read_token(token_file) if token_file else environ.get(TOKEN_VARIABLE, ""),
        has_tls=not flags.no_tls,
        known=_known(environ, uid=uid) if is_pinned else None,
        is_trusted_network=flags.trusted_network,
    )


def _configured(environ: Mapping[str, str], *, uid: int) -> tuple[str, dict[str, str]]:
    """The source that names nodes, and the values of the environment and ingero.yaml (of the user, or else /etc).

    A file in the current folder is not read.
    """
    path = find_config(environ.get(CONFIG_VARIABLE), invoking_user(environ, uid=uid).home)
    given = given_values(SECTIONS[FLEET], {}, environ, path)
    for option in SECTIONS[FLEET]:
        value_of(option, given.get(option.name))  # raises where the value cannot be used
    nodes = given.get("nodes")
    origin = str(path) if nodes and nodes.rank is Rank.FILE else nodes.origin if nodes else ""
    return origin, {name: value.text for name, value in given.items()}
