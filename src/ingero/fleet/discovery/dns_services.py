"""The nodes of a service in the DNS: `srv:_ingero._tcp.example.org`, its SRV records (RFC 2782)."""

from __future__ import annotations

import re
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ingero.errors import IngeroError
from ingero.fleet.node_lists import SERVICE, Node, NodeListError, is_host

_NAME = re.compile(r"(_[a-z0-9-]{1,62}\.){2}([a-z0-9_-]{1,63}\.)*[a-z0-9-]{1,63}\.?")
_MAX_NAME = 253
_RESOLV_CONF = Path("/etc/resolv.conf")
_PORT, _MAX_SERVERS = 53, 3  # as resolv.conf(5): MAXNS
_ROUNDS, _WAIT_S = 2, 2.0  # for each server, as resolv.conf(5) says with 5 s
_MAX_UDP_BYTES, _MAX_BYTES = 1232, 64 << 10  # what passes every network whole (DNS flag day 2020); a length over TCP
_SRV, _IN, _OPT = 33, 1, 41
_IS_ANSWER, _IS_CUT, _WANTS_RECURSION, _RCODE = 0x8000, 0x0200, 0x0100, 0x000F
_NO_SUCH_NAME = 3
_HEADER, _RECORD, _RECORD_SRV = struct.Struct("!6H"), struct.Struct("!HHIH"), struct.Struct("!3H")
_HINT = "write it like srv:_ingero._tcp.example.org; `host -t SRV NAME` shows what the DNS knows"


class NameServiceError(IngeroError):
    """The DNS has no answer."""


@dataclass(frozen=True, slots=True, order=True)
class Service:
    """Where a service runs."""

    priority: int
    target: str
    port: int


def service_nodes(name: str, servers: Sequence[tuple[str, int]] | None = None) -> Iterator[Node]:
    """The nodes, by priority and name. servers: (address, port) of those to ask; None: this system's.

    All have to be below the domain of the service. A DNS answer can be forged, and a certificate is checked against the
    name it gives: a stranger with a valid certificate for its own name must not be shown a token.

    Raises:
        NodeListError: it is no name of a service, or leads elsewhere.
        NameServiceError: nobody answers, or there is no such service.
    """
    wanted = name.lower()
    if not _NAME.fullmatch(wanted) or len(wanted) > _MAX_NAME:
        raise NodeListError(f"{SERVICE + name[:80]!r} is not a service", hint=_HINT)
    wanted = wanted.rstrip(".")
    domain = wanted.split(".", 2)[2]
    for each in sorted(set(_asked(wanted, _system_servers() if servers is None else servers))):
        if not is_host(each.target) or not f".{each.target}".endswith(f".{domain}") or not each.port:
            where = f"{each.target[:80]!r}, which is not a node below {domain}"
            raise NodeListError(f"{wanted} leads to {where}", hint=f"name such nodes with --nodes; {_HINT}")
        yield Node(each.target, each.port)


def _system_servers(path: Path = _RESOLV_CONF) -> list[tuple[str, int]]:
    """The name servers of resolv.conf(5): the first three, or this host."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    words = [line.split() for line in lines]
    found = [(one[1], _PORT) for one in words if len(one) > 1 and one[0] == "nameserver"]
    return found[:_MAX_SERVERS] or [("127.0.0.1", _PORT)]


def _asked(name: str, servers: Sequence[tuple[str, int]]) -> list[Service]:
    why = "nobody answers"
    for server in [*servers] * _ROUNDS:
        number = secrets.randbelow(1 << 16)
        question = _question(name, number)
        try:
            raw = _over_udp(server, question, number, name)
            flags = _HEADER.unpack_from(raw)[1]
            if flags & _IS_CUT:
                raw = _over_tcp(server, question)
                _check(raw, number, name)
                flags = _HEADER.unpack_from(raw)[1]
            code = flags & _RCODE
            found = _services(raw) if not code else []
        except (OSError, ValueError, struct.error, IndexError) as error:
            why = f"{server[0]}: {getattr(error, 'strerror', None) or error or 'no answer'}"
            continue
        if code in (0, _NO_SUCH_NAME):
            if not found:
                raise NameServiceError(f"the DNS knows no service {name}", hint=_HINT)
            return found
        why = f"{server[0]} answers with error {code}"
    raise NameServiceError(f"the DNS does not say where {name} is: {why}", hint=_HINT)


def _over_udp(server: tuple[str, int], question: bytes, number: int, name: str) -> bytes:
    """The first datagram that is an answer to it; the kernel takes none of others than the server."""
    family, kind, proto, _, address = socket.getaddrinfo(*server, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[
        0
    ]
    until_s = time.monotonic() + _WAIT_S
    with closing(socket.socket(family, kind, proto)) as asking:
        asking.connect(address)
        asking.send(question)
        while True:
            _wait(asking, until_s)
            raw = asking.recv(_MAX_UDP_BYTES)
            try:
                _check(raw, number, name)
            except (ValueError, struct.error, IndexError):
                continue  # not of this question
            return raw


def _over_tcp(server: tuple[str, int], question: bytes) -> bytes:
    family, kind, proto, _, address = socket.getaddrinfo(*server, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[
        0
    ]
    until_s = time.monotonic() + _WAIT_S
    with closing(socket.socket(family, kind, proto)) as asking:
        _wait(asking, until_s)
        asking.connect(address)
        asking.sendall(struct.pack("!H", len(question)) + question)
        found = bytearray()
        while len(found) < 2 or len(found) < 2 + int.from_bytes(found[:2], "big"):
            _wait(asking, until_s)
            piece = asking.recv(_MAX_BYTES)
            if not piece:
                raise ValueError("it broke off")
            found += piece
    return bytes(found[2 : 2 + int.from_bytes(found[:2], "big")])


def _wait(asking: socket.socket, until_s: float) -> None:
    """Limit the next step to the time left until then, CLOCK_MONOTONIC."""
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("it did not answer in time")
    asking.settimeout(left_s)


def _question(name: str, number: int) -> bytes:
    """A query with an OPT record, which gives the maximum answer size (RFC 6891)."""
    return (
        _HEADER.pack(number, _WANTS_RECURSION, 1, 0, 0, 1)
        + _written(name)
        + struct.pack("!HH", _SRV, _IN)
        + b"\0"
        + _RECORD.pack(_OPT, _MAX_UDP_BYTES, 0, 0)
    )


def _written(name: str) -> bytes:
    labels = name.encode("ascii").split(b".")
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def _check(raw: bytes, number: int, name: str) -> None:
    """Raise ValueError unless the datagram answers this question."""
    given, flags, questions, *_ = _HEADER.unpack_from(raw)
    asked, at = _name(raw, _HEADER.size)
    is_same = given == number and flags & _IS_ANSWER and questions == 1 and asked == name
    if not is_same or struct.unpack_from("!HH", raw, at) != (_SRV, _IN):
        raise ValueError("it answers something else")


def _services(raw: bytes) -> list[Service]:
    """The SRV records of an answer; records behind an alias have another name."""
    count = _HEADER.unpack_from(raw)[3]
    at = _name(raw, _HEADER.size)[1] + 4
    found = []
    for _ in range(count):
        at = _name(raw, at)[1]
        kind, of, _, size = _RECORD.unpack_from(raw, at)
        at += _RECORD.size
        if (kind, of) == (_SRV, _IN):
            priority, _, port = _RECORD_SRV.unpack_from(raw, at)
            target, end = _name(raw, at + _RECORD_SRV.size)
            if end > at + size:
                raise ValueError("a record is cut")
            if target:  # the root stands for: decidedly not available
                found.append(Service(priority, target, port))
        at += size
    return found


def _name(raw: bytes, at: int) -> tuple[str, int]:
    """A name, and the offset after it. Each pointer leads back, so that parsing ends."""
    labels: list[str] = []
    end, least = 0, at
    while raw[at]:
        size = raw[at]
        if size >= 0xC0:
            to = (size & 0x3F) << 8 | raw[at + 1]
            end = end or at + 2
            if to >= least:
                raise ValueError("a name has no end")
            at = least = to
            continue
        label = raw[at + 1 : at + 1 + size]
        if size > 63 or len(label) < size:
            raise ValueError("a name is cut")
        labels.append(label.decode("latin-1").lower())
        if sum(map(len, labels)) + len(labels) > _MAX_NAME + 1:
            raise ValueError("a name is too long")
        at += 1 + size
    return ".".join(labels), end or at + 1
