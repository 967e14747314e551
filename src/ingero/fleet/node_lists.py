"""Parses lists of nodes as people write them: `a,b:8081`, `gpu[001-512]`, `r[1-4]n[01-08]`, `@file`; and fleet.nodes.

`slurm:JOB`, `k8s:NAMESPACE/SELECTOR` and `srv:NAME` stand for nodes that a service knows: see `discovery`.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ingero.errors import IngeroError
from ingero.serve.http.addresses import is_loopback

DEFAULT_PORT = 8080  # of `ingero dashboard`
MAX_NODES = 10_000
_MAX_FILE_BYTES = 4 << 20
_MAX_PORT = 65535
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|[A-Za-z0-9]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:/(\d{1,9}))?)?")
_PIECE = re.compile(r"\[([^\[\]]*)\]")
_EXAMPLES = "write it like gpu-01,gpu-02:8081, gpu[001-512] or @FILE with a node a line"
SLURM, KUBERNETES, SERVICE = "slurm:", "k8s:", "srv:"
_ELSEWHERE = (SLURM, KUBERNETES, SERVICE)  # a host of such a name is called by a longer one

_Listed = TypeVar("_Listed")


class NodeListError(IngeroError):
    """The text is not a list of nodes."""


@dataclass(frozen=True, slots=True)
class Node:
    """Where a node's server listens; `str()` is its address as it was given, the port only if it is another.

    host: the name its certificate is for. address: an IP address to connect to instead; "": connect to host.
    """

    host: str
    port: int = DEFAULT_PORT
    address: str = ""

    def __str__(self) -> str:
        return self.host if self.port == DEFAULT_PORT else self.authority

    @property
    def authority(self) -> str:
        """Host and port as in a URL."""
        return _authority(self.host, self.port)

    @property
    def reached_at(self) -> str:
        """The address to connect to, as in a URL."""
        return _authority(self.address or self.host, self.port)

    @property
    def is_loopback(self) -> bool:
        """Whether it is this host."""
        return is_loopback(self.address or self.host)


def _authority(host: str, port: int) -> str:
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def _nobody_to_ask(word: str) -> Iterable[Node]:
    raise NodeListError(f"{word!r} is not a node", hint=_EXAMPLES)


def parse_nodes(texts: Sequence[str], discover: Callable[[str], Iterable[Node]] = _nobody_to_ask) -> tuple[Node, ...]:
    """The nodes of some lists, in order, each once. discover: finds the nodes of a word like `slurm:JOB`.

    Raises:
        NodeListError: something in them is no node, there is none, or there are too many.
        IngeroError: as `discover` raises it.
    """
    found = dict.fromkeys(_bounded(node for text in texts for node in _nodes(text, discover)))
    if not found:
        raise NodeListError("it names no node", hint=_EXAMPLES)
    return tuple(found)


def expand(text: str) -> list[str]:
    """The names that a list stands for, in order; a name may occur twice.

    Raises:
        NodeListError: a bracket is not a list of numbers, or they are too many.
    """
    return list(_bounded(name for word in words(text) for name in _expanded(word)))


def _bounded(found: Iterable[_Listed]) -> Iterator[_Listed]:
    for count, each in enumerate(found, 1):
        if count > MAX_NODES:
            raise NodeListError(f"it expands to more than {MAX_NODES:,} nodes", hint="ask a part of them")
        yield each


def _nodes(text: str, discover: Callable[[str], Iterable[Node]]) -> Iterator[Node]:
    """The nodes of one list, or of one selector, which may contain commas and spaces."""
    if text.strip().startswith(KUBERNETES):
        yield from discover(text.strip())
        return
    for word in words(text):
        if word.startswith(KUBERNETES):
            raise NodeListError(
                f"{word!r} cannot be part of a list", hint=f"give --nodes once more for {KUBERNETES}..."
            )
        if word.startswith(_ELSEWHERE):
            yield from discover(word)
        else:
            yield from map(_node, _of_file(Path(word[1:])) if word.startswith("@") else _expanded(word))


def words(text: str) -> Iterator[str]:
    """The words between commas and spaces, except those inside brackets."""
    word, depth = "", 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if depth == 0 and (char == "," or char.isspace()):
            if word:
                yield word
            word = ""
        else:
            word += char
    if word:
        yield word


def _of_file(path: Path) -> Iterator[str]:
    """The lists of a file, one per line; # starts a comment. A file cannot include another."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
        text = raw.decode()
    except OSError as error:
        raise NodeListError(f"{path}: {error.strerror}", hint=_EXAMPLES) from error
    except UnicodeDecodeError as error:
        raise NodeListError(f"{path} is not a text file", hint=_EXAMPLES) from error
    if len(raw) > _MAX_FILE_BYTES:
        raise NodeListError(f"{path} is larger than {_MAX_FILE_BYTES >> 20} MiB", hint=_EXAMPLES)
    for number, line in enumerate(text.splitlines(), 1):
        for word in words(line.partition("#")[0]):
            try:
                yield from _expanded(word)
            except NodeListError as error:
                raise NodeListError(f"{path}, line {number}: {error}", hint=error.hint) from None


def _expanded(word: str) -> Iterator[str]:
    """All combinations of a word's bracketed ranges, the last range varying fastest."""
    pieces = _PIECE.split(word)  # text, bracket, text, ..., text
    if len(pieces) == 1 or ":" in pieces[1]:  # an IPv6 address stands in brackets, too
        yield word
        return
    ranges = [list(itertools.islice(_numbers(word, piece), MAX_NODES + 1)) for piece in pieces[1::2]]
    for numbers in itertools.product(*ranges):
        yield "".join(itertools.chain(*itertools.zip_longest(pieces[::2], numbers, fillvalue="")))


def _numbers(word: str, piece: str) -> Iterator[str]:
    """The numbers of a bracket: `001-003,7` keeps the width of a range's first number; `0-8/2` is every second one."""
    for part in piece.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise NodeListError(f"{word!r}: [{piece}] is not a list of numbers", hint=_EXAMPLES)
        first, last, step = found[1], found[2] or found[1], int(found[3] or 1)
        if int(last) < int(first) or step == 0:
            raise NodeListError(f"{word!r}: {part} is an empty range", hint=_EXAMPLES)
        for number in range(int(first), int(last) + 1, step):
            yield str(number).zfill(len(first) if first.startswith("0") else 0)


def checked_node(host: str, port: int, address: str) -> Node:
    """Check a node named by another machine. address: "", or an IP address.

    Raises:
        NodeListError: it is none.
    """
    if not is_host(host) or not 0 < port <= _MAX_PORT:
        raise NodeListError(f"{host!r} is not a node", hint=_EXAMPLES)
    try:
        return Node(host.lower(), port, str(ipaddress.ip_address(address)) if address else "")
    except ValueError as error:
        raise NodeListError(f"{address!r} is not an address of {host}", hint=_EXAMPLES) from error


def _node(word: str) -> Node:
    if word.startswith(_ELSEWHERE):
        raise NodeListError(
            f"{word!r} cannot be used in a file", hint="name it with --nodes, or as fleet.nodes in ingero.yaml"
        )
    host, port = host_and_port(word)
    if not is_host(host):
        raise NodeListError(f"{word!r} is not a node", hint=_EXAMPLES)
    if not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        raise NodeListError(f"{word!r} has no port from 1 to {_MAX_PORT}", hint=_EXAMPLES)
    return Node(host.lower(), int(port))


def host_and_port(word: str) -> tuple[str, str]:
    """The host without brackets, and the port as written."""
    if word.startswith("["):
        host, _, rest = word[1:].partition("]")
        return host, rest[1:] if rest.startswith(":") else ("" if rest else str(DEFAULT_PORT))
    if _is_ipv6(word):
        return word, str(DEFAULT_PORT)
    host, colon, port = word.partition(":")
    return host, port if colon else str(DEFAULT_PORT)


def _is_ipv6(host: str) -> bool:
    if ":" not in host:
        return False
    try:
        return isinstance(ipaddress.ip_address(host), ipaddress.IPv6Address)
    except ValueError:
        return False


def is_host(text: str) -> bool:
    """Whether a text is a host name or an IP address."""
    return _HOST.fullmatch(text) is not None or _is_ipv6(text)


def listed(nodes: Iterable[object], most: int = 5) -> str:
    """The first few nodes, listed for a sentence."""
    names = [str(node) for node in nodes]
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
