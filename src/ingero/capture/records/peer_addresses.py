"""Numbers the address pairs of TCP connections, up to a limit."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache

_MAX_PAIRS = 20_000  # texts are kept for the whole recording; a public server may lose packets to any address
TOO_MANY = "(too many addresses to name)"


class PeerAddresses:
    """Numbers of texts such as "10.0.0.1 > 10.0.0.2". intern: the number that stands for a text."""

    def __init__(self, intern: Callable[[str], int]) -> None:
        self._intern = intern
        self._numbers: dict[bytes, int] = {}

    def number(self, ends: bytes) -> int:
        """ends: source and destination, 16 bytes each, v4 mapped into v6; 0 where there is none."""
        if not any(ends):
            return 0
        if ends not in self._numbers:
            if len(self._numbers) >= _MAX_PAIRS:
                return self._intern(TOO_MANY)
            self._numbers[ends] = self._intern(pair_text(ends))
        return self._numbers[ends]


def pair_text(ends: bytes) -> str:
    """The text of source and destination."""
    return f"{_text(ends[:16])} > {_text(ends[16:])}"


@lru_cache(maxsize=1024)
def _text(address: bytes) -> str:
    found = ipaddress.IPv6Address(address)
    return str(found.ipv4_mapped or found)
