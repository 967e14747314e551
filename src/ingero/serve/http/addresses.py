"""Addresses of servers: they listen on this host alone unless another address is given."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass

from ingero.errors import IngeroError

_LOOPBACK = "127.0.0.1"
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_MAX_PORT = 65535
_DISCARD = 9  # a port of any kind: nothing is sent to it
_PORT_FIXES = {
    errno.EADDRINUSE: "name another port (`ss -ltnp` shows who has which)",
    errno.EACCES: "name a port from 1024 on: those below are root's",
}


class AddressError(IngeroError):
    """A server cannot listen there."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host as it was named, and a port; port 0: any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can reach it."""
        return is_loopback(self.host)

    @property
    def names(self) -> tuple[str, ...]:
        """Host names that clients may use: the given one, on a wildcard also the host's name; loopback always."""
        own = () if self.is_loopback else (socket.gethostname(), socket.getfqdn())
        named = () if self._is_wildcard else (self.host,)
        return tuple(dict.fromkeys((*_LOOPBACK_NAMES, *named, *own)))

    @property
    def url_host(self) -> str:
        """The host to put into a URL."""
        if self._is_wildcard:
            return socket.gethostname()
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def _is_wildcard(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """`:8443`, `8443`, `127.0.0.1:8443`, `[::1]:8443`, `gpu-7:8443`; without a host it is this machine alone.

    Raises:
        AddressError: it is none of these.
    """
    host, _, port = text.rpartition(":")
    is_odd = "@" in host or (":" in host and not host.startswith("["))
    if is_odd or not port.isdecimal() or int(port) > _MAX_PORT:
        raise AddressError(
            f"{without_login(text)!r} is not an address to listen on", hint="write it like :8443 or 0.0.0.0:8443"
        )
    return Address(host.strip("[]") or _LOOPBACK, int(port))


def without_login(text: str) -> str:
    """A given address without its user name and password, safe to show."""
    return text.rpartition("@")[2]


def listen(address: Address) -> socket.socket:
    """Open a socket that listens on the address.

    Raises:
        AddressError: it is taken, or not this machine's.
    """
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise AddressError(f"cannot listen on {address}: {why}", hint=_way_out(error, address)) from error
    # Connections inherit it. asyncio sets it only where a socket says its protocol, and this one does not: without, the
    # body of each answer, which follows its head, waits 40 ms for the client's acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _way_out(error: OSError, address: Address) -> str:
    if isinstance(error, socket.gaierror) or error.errno not in _PORT_FIXES:
        return f"name an address of this host (`ip -brief address` lists them), or the port alone: :{address.port}"
    return _PORT_FIXES[error.errno]


def is_this_machine(host: str) -> bool:
    """Whether an address is this host's: loopback, or an address of one of its interfaces.

    Nothing is sent: the kernel says from which address it would.
    """
    if is_loopback(host):
        return True
    try:
        found = socket.getaddrinfo(host, _DISCARD, type=socket.SOCK_DGRAM)
        return bool(found) and all(_is_own(family, str(address[0])) for family, _, _, _, address in found)
    except OSError:
        return False


def _is_own(family: int, host: str) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, _DISCARD))
        return bool(probe.getsockname()[0] == host.partition("%")[0])


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
