"""Lists of nodes as people write them: `a,b:8081`, `gpu[001-512]`, `r[1-4]n[01-08]`, `@file`; and fleet.nodes."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingero.errors import IngeroError
from ingero.serve.addresses import is_loopback

DEFAULT_PORT = 8080  # of `ingero dashboard`
MOST_NODES = 10_000
_MOST_FILE_BYTES = 4 << 20
_MAX_PORT = 65535
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|[A-Za-z0-9]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:/(\d{1,9}))?)?")
_PIECE = re.compile(r"\[([^\[\]]*)\]")
_EXAMPLES = "write it like gpu-01,gpu-02:8081, gpu[001-512] or @FILE with a node a line"


class NodeListError(IngeroError):
    """It is no list of nodes."""


@dataclass(frozen=True, slots=True)
class Node:
    """Where a node's server listens; `str()` is its address as it was given, the port only if it is another."""

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return self.host if self.port == DEFAULT_PORT else self.authority

    @property
    def authority(self) -> str:
        """Host and port, as a URL has them."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine."""
        return is_loopback(self.host)


def parse_nodes(texts: Sequence[str]) -> tuple[Node, ...]:
    """The nodes of some lists, in their order, each once.

    Raises:
        NodeListError: something in them is no node, there is none, or there are too many.
    """
    found = dict.fromkeys(_node(word) for text in texts for word in _names(text, may_be_file=True))
    if not found:
        raise NodeListError("there is no node in it", hint=_EXAMPLES)
    return tuple(found)


def expand(text: str) -> list[str]:
    """The names that a list stands for, in its order; a name may be there twice.

    Raises:
        NodeListError: a bracket is no list of numbers, or they are too many.
    """
    return list(_names(text, may_be_file=False))


def _names(text: str, *, may_be_file: bool) -> Iterator[str]:
    count = 0
    for word in _words(text):
        found = _of_file(Path(word[1:])) if may_be_file and word.startswith("@") else _expanded(word)
        for name in found:
            count += 1
            if count > MOST_NODES:
                raise NodeListError(f"it stands for more than {MOST_NODES:,} nodes", hint="ask a part of them")
            yield name


def _words(text: str) -> Iterator[str]:
    """What stands between commas and spaces, but for those in brackets."""
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
    """A list a line; what follows a # is a remark. No file names another."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_FILE_BYTES + 1)
        text = raw.decode()
    except OSError as error:
        raise NodeListError(f"{path}: {error.strerror}", hint=_EXAMPLES) from error
    except UnicodeDecodeError as error:
        raise NodeListError(f"{path} is no text", hint=_EXAMPLES) from error
    if len(raw) > _MOST_FILE_BYTES:
        raise NodeListError(f"{path} is larger than {_MOST_FILE_BYTES >> 20} MiB", hint=_EXAMPLES)
    for number, line in enumerate(text.splitlines(), 1):
        for word in _words(line.partition("#")[0]):
            try:
                yield from _expanded(word)
            except NodeListError as error:
                raise NodeListError(f"{path}, line {number}: {error}", hint=error.hint) from None


def _expanded(word: str) -> Iterator[str]:
    """Each combination of what its brackets stand for, the last one fastest."""
    pieces = _PIECE.split(word)  # text, bracket, text, ..., text
    if len(pieces) == 1 or ":" in pieces[1]:  # an IPv6 address stands in brackets, too
        yield word
        return
    ranges = [list(itertools.islice(_numbers(word, piece), MOST_NODES + 1)) for piece in pieces[1::2]]
    for numbers in itertools.product(*ranges):
        yield "".join(itertools.chain(*itertools.zip_longest(pieces[::2], numbers, fillvalue="")))


def _numbers(word: str, piece: str) -> Iterator[str]:
    """`001-003,7`: as wide as the first number of a range is written; `0-8/2`: every second."""
    for part in piece.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise NodeListError(f"{word!r}: [{piece}] is no list of numbers", hint=_EXAMPLES)
        first, last, step = found[1], found[2] or found[1], int(found[3] or 1)
        if int(last) < int(first) or step == 0:
            raise NodeListError(f"{word!r}: {part} counts to nothing", hint=_EXAMPLES)
        for number in range(int(first), int(last) + 1, step):
            yield str(number).zfill(len(first) if first.startswith("0") else 0)


def _node(word: str) -> Node:
    host, port = _host_and_port(word)
    if not is_host(host):
        raise NodeListError(f"{word!r} is no node", hint=_EXAMPLES)
    if not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        raise NodeListError(f"{word!r} has no port from 1 to {_MAX_PORT}", hint=_EXAMPLES)
    return Node(host.lower(), int(port))


def _host_and_port(word: str) -> tuple[str, str]:
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
    """Whether it is a host name or an IP address."""
    return _HOST.fullmatch(text) is not None or _is_ipv6(text)


def listed(nodes: Iterable[object], most: int = 5) -> str:
    """Some of them in a sentence."""
    names = [str(one) for one in nodes]
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
