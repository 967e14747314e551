"""`ingero certs`: a private certificate authority, and certificates for nodes and their clients."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from ingero.cli.command_group import CommandGroup, WholeNumber
from ingero.cli.output import echo
from ingero.errors import IngeroError
from ingero.foreign_text import shell_word
from ingero.store.opening.locations import invoking_user

if TYPE_CHECKING:
    from ingero.fleet.authority import IssuedCertificate

_ON_NODE = "/etc/ingero"
_folder = click.option(
    "--dir", "folder", type=click.Path(path_type=Path, file_okay=False), metavar="D",
    help="Folder of the certificate authority (default ~/.ingero/certs).",
)  # fmt: skip
_days = click.option(
    "--days",
    type=WholeNumber(1, 3650),
    metavar="N",
    default=365,
    help="Days until the certificate expires (default 365).",
)
_force = click.option("--force", is_flag=True, help="Replace an existing certificate, to renew it.")


class NotInstalledError(IngeroError):
    """The package that makes certificates is not installed."""


class CertificateNameError(IngeroError):
    """A name cannot stand in a certificate."""


@click.group("certs", cls=CommandGroup)
def command() -> None:
    """Create TLS certificates for nodes and their clients.

    A certificate authority of your own signs them: `init` creates it, `node` and `client` use it, and each prints what
    to copy where. Nodes accept only clients with a certificate from it (--client-ca), and clients trust only nodes with
    one (--ca-cert).
    """


@command.command("init")
@_folder
def init(folder: Path | None) -> None:
    """Create a certificate authority."""
    _require_library()
    from ingero.fleet.authority import make_authority  # noqa: PLC0415  # an optional library

    now = datetime.now(timezone.utc)
    made = make_authority(_folder_of(folder), name=f"ingero {os.uname().nodename} {now:%Y-%m-%d}", now=now)
    at = "" if folder is None else f" --dir {shell_word(folder)}"
    echo(f"{made.certificate}  the authority's certificate: for every node, and for everybody who asks")
    echo(f"{made.key}  its private key: it stays here; anybody with it can make certificates")
    echo(f"valid until {made.until:%Y-%m-%d}. Next:")
    echo(f"  ingero certs node{at} NAME [ADDRESS...]   for each node, by every name that clients call it by")
    echo(f"  ingero certs client{at} NAME              for each who asks")


@command.command("node")
@click.argument("name")
@click.argument("addresses", nargs=-1, metavar="[ADDRESS]...")
@_folder
@_days
@_force
def node(name: str, addresses: tuple[str, ...], folder: Path | None, days: int, force: bool) -> None:
    """Create the certificate of a node.

    NAME is the node's name, or a list such as gpu[001-512], with a certificate for each. ADDRESS: further names and IP
    addresses that clients use for it.
    """
    _require_library()
    from ingero.fleet.node_lists import expand  # noqa: PLC0415  # as above

    names = expand(name)
    if len(names) != 1 and addresses:
        raise CertificateNameError(
            "addresses are for one node", hint="leave them out, or make a certificate for each node"
        )
    made = [_issue(folder, host, (host, *addresses), is_server=True, days=days, force=force) for host in names]
    for pair in made:
        echo(f"{pair.certificate}, {pair.key.name}  for {', '.join(pair.names)}; valid until {pair.until:%Y-%m-%d}")
    first = made[0]
    options = f"--tls-cert {_ON_NODE}/{first.certificate.name} --tls-key {_ON_NODE}/{first.key.name}"
    files = " ".join(shell_word(path) for path in (_ca(folder), first.certificate, first.key))
    _say_lines((
        f"copy to {first.names[0]}, into {_ON_NODE}, readable by who runs ingero there only:",
        f"  scp -p {files} {first.names[0]}:{_ON_NODE}/",
        *((f"and so on, each its own; {len(made):,} in all",) if len(made) > 1 else ()),
        "and on it:",
        f"  ingero dashboard --addr 0.0.0.0:8080 {options} --client-ca {_ON_NODE}/ca.pem",
    ))  # fmt: skip


@command.command("client")
@click.argument("name")
@_folder
@_days
@_force
def client(name: str, folder: Path | None, days: int, force: bool) -> None:
    """Create a certificate for a client, to query nodes with."""
    _require_library()
    made = _issue(folder, name, (name,), is_server=False, days=days, force=force)
    echo(f"{made.certificate}, {made.key.name}  for {name}; valid until {made.until:%Y-%m-%d}")
    files = [shell_word(path) for path in (_ca(folder), made.certificate, made.key)]
    _say_lines((
        f"copy these to the client; the key must stay secret:  {' '.join(files)}",
        f"  ingero query --nodes gpu-01,gpu-02 --ca-cert {files[0]} --client-cert {files[1]} --client-key {files[2]} "
        '"SELECT node, count(*) FROM events GROUP BY node"',
    ))  # fmt: skip


@command.command("forget")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
def forget(nodes: tuple[str, ...]) -> None:
    """Forget the pinned certificates of nodes.

    --pin trusts a node by the certificate that it presented first. After this, the next one it presents is pinned.
    """
    from ingero.cli.fleet.options import known_nodes_path  # noqa: PLC0415  # only this needs it
    from ingero.fleet.known_nodes import forget  # noqa: PLC0415  # as above
    from ingero.fleet.node_lists import parse_nodes  # noqa: PLC0415  # as above

    owner = invoking_user(os.environ, uid=os.getuid())
    path = known_nodes_path(os.environ, uid=os.getuid())
    wanted = parse_nodes(nodes)
    found = forget(path, wanted, owner if os.getuid() == 0 else None)
    for node in wanted:
        echo(f"{node}: forgotten" if node in found else f"{node}: was not known")


def _issue(
    folder: Path | None, name: str, names: Sequence[str], *, is_server: bool, days: int, force: bool
) -> IssuedCertificate:
    from ingero.fleet.authority import make_certificate  # noqa: PLC0415  # an optional library
    from ingero.fleet.node_lists import is_host  # noqa: PLC0415  # as above

    wrong = next((one for one in names if not is_host(one)), None)
    if wrong is not None or name == "ca":
        raise CertificateNameError(
            f"{wrong or name!r} is not a valid name", hint="use letters, digits, dots and dashes"
        )
    now = datetime.now(timezone.utc)
    return make_certificate(
        _folder_of(folder), name, names=names, is_server=is_server, days=days, replaces=force, now=now
    )


def _folder_of(folder: Path | None) -> Path:
    return folder or invoking_user(os.environ, uid=os.getuid()).home / ".ingero" / "certs"


def _ca(folder: Path | None) -> Path:
    return _folder_of(folder) / "ca.pem"


def _say_lines(lines: Sequence[str]) -> None:
    for line in lines:
        echo(line)


def _require_library() -> None:
    if not find_spec("cryptography"):
        raise NotInstalledError("certificates need the package cryptography", hint="pip install 'ingero[fleet]'")
