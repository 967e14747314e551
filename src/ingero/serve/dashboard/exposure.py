"""Exposure of the dashboard: the protection required by the address that it listens on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ingero.errors import IngeroError
from ingero.serve.http.addresses import Address

MIN_TOKEN_CHARACTERS = 16  # 64 bits as hexadecimal digits; below it, guessing over a network is conceivable
TOKEN_VARIABLE = "INGERO_DASHBOARD_TOKEN"
_NEW_TOKEN = f"export {TOKEN_VARIABLE}=$(openssl rand -hex 32)"


class ExposureError(IngeroError):
    """The dashboard would be open to strangers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The address it listens on, and the clients it accepts.

    token: "" for none. client_ca: certificates of clients must be signed by it. hosts: names by which it may be called
    besides its address and this machine's names, e.g. that of a proxy.
    """

    address: Address
    has_tls: bool = True
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    token: str = ""
    hosts: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The URL to type into a browser."""
        return f"{'https' if self.has_tls else 'http'}://{self.address.url_host}:{self.address.port}/"


def check_exposure(exposure: Exposure, *, is_trusted_network: bool) -> None:
    """Refuse settings that would show a recording to strangers, or a token to eavesdroppers.

    Raises:
        ExposureError: with what would be safe.
    """
    token = exposure.token
    if token and (len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable()):
        raise ExposureError(
            f"{TOKEN_VARIABLE} needs at least {MIN_TOKEN_CHARACTERS} printable ASCII characters", hint=_NEW_TOKEN
        )
    if (exposure.certificate is None) != (exposure.key is None):
        raise ExposureError("a certificate needs its key", hint="give both --tls-cert and --tls-key, or neither")
    if not exposure.has_tls:
        _check_plain(exposure, is_trusted_network=is_trusted_network)
    elif not (exposure.address.is_loopback or token or exposure.client_ca):
        raise ExposureError(
            f"{exposure.address.host} can be reached from other hosts, and there is no token",
            hint=f"{_NEW_TOKEN}, or let in only clients with certificates: --client-ca FILE",
        )


def _check_plain(exposure: Exposure, *, is_trusted_network: bool) -> None:
    if exposure.certificate or exposure.client_ca:
        raise ExposureError("without TLS there are no certificates", hint="leave out --no-tls")
    if exposure.address.is_loopback:
        return
    host, port = exposure.address.host, exposure.address.port
    if not exposure.token:
        raise ExposureError(
            f"--no-tls on {host} would show the recording to everyone on the network",
            hint=f"leave out --no-tls, or listen on 127.0.0.1 and `ssh -L {port}:127.0.0.1:{port} HOST` from outside",
        )
    if not is_trusted_network:
        raise ExposureError(
            f"--no-tls on {host} would send the token and the recording readable to all between",
            hint="leave out --no-tls; on a network where nobody listens, add --trusted-network",
        )
