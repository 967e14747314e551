"""Access to nodes: certificates or a token, TLS 1.3, and plain HTTP only where it cannot be overheard."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ingero.errors import IngeroError
from ingero.fleet.known_nodes import KnownNodes
from ingero.fleet.node_lists import Node, listed

_WAY_OUT = "`ingero certs` makes certificates; docs/fleet.md says how"


class AccessError(IngeroError):
    """Nodes cannot, or should not, be queried this way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Credentials shown to nodes, and those required of them. token: "" for none; it is in no text of the record.

    ca_cert: the authority that signs nodes' certificates; None: those that this system trusts. known: instead of any
    authority, each node is trusted by the certificate that it showed first.
    """

    ca_cert: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    token: str = field(default="", repr=False)
    has_tls: bool = True
    known: KnownNodes | None = None
    is_trusted_network: bool = False


def check_access(access: Access, nodes: Iterable[Node]) -> None:
    """Refuse access that would show a token or a recording to eavesdroppers.

    Raises:
        AccessError: with what would be safe.
    """
    if (access.client_cert is None) != (access.client_key is None):
        raise AccessError("a client's certificate needs its key", hint="give both --client-cert and --client-key")
    if access.known is not None and access.ca_cert:
        raise AccessError("--pin and --ca-cert exclude each other", hint="leave out --pin: the authority says more")
    if access.has_tls:
        return
    if access.ca_cert or access.client_cert or access.known is not None:
        raise AccessError("without TLS there are no certificates", hint="leave out --no-tls")
    far = [node for node in nodes if not node.is_loopback]
    if far and not access.is_trusted_network:
        raise AccessError(
            f"--no-tls would show everything to all between here and {listed(far)}",
            hint="leave out --no-tls; on a network where nobody listens, add --trusted-network",
        )


def client_context(access: Access) -> ssl.SSLContext | None:
    """A context for TLS 1.3 that requires a certificate for the node's name or address; None without TLS.

    With `access.known` no certificate is refused here: `Connection` compares it before anything is said.

    Raises:
        AccessError: a file cannot be used.
    """
    if not access.has_tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        if access.known is not None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif access.ca_cert is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(access.ca_cert)
    except (OSError, ssl.SSLError) as error:
        raise AccessError(f"{access.ca_cert}: {_why(error)}", hint=f"--ca-cert needs a PEM file: {_WAY_OUT}") from error
    if access.client_cert is not None and access.client_key is not None:
        try:
            context.load_cert_chain(access.client_cert, access.client_key, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise AccessError(
                f"{access.client_cert}, {access.client_key}: {_why(error)}",
                hint=f"--client-cert and --client-key need a PEM certificate and its own unencrypted key: {_WAY_OUT}",
            ) from error
    return context


def expired_on(certificate: Path, now_s: float) -> str:
    """The day on which the client's own certificate expired; "" if it has not, or cannot be read."""
    from cryptography import x509  # noqa: PLC0415  # only where a node refuses it

    try:
        until = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return ""
    return f"{until:%Y-%m-%d}" if until.timestamp() < now_s else ""


def _no_password() -> str:
    """Replaces a password prompt on the terminal, which may be unattended."""
    raise ValueError("the key is encrypted")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it cannot be used").lower().replace("_", " ")
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
