"""The nodes that a relay may ask for clients: those that its operator named, by name or by network, and no others."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ingero.fleet.node_lists import DEFAULT_PORT, Node, NodeListError, host_and_port, listed, parse_nodes, words

_EXAMPLES = "write it like gpu[001-512],10.1.0.0/16, with :PORT behind it for another port than 8080"
_MAX_PORT = 65535

_Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayList:
    """Nodes by host and port, and networks with a port."""

    nodes: frozenset[tuple[str, int]]
    networks: tuple[tuple[_Network, int], ...]

    def allows(self, node: Node) -> bool:
        """Whether a node may be asked: the address connected to counts, not the name of its certificate."""
        reached = node.address or node.host
        if (reached, node.port) in self.nodes:
            return True
        try:
            address = ipaddress.ip_address(reached)
        except ValueError:
            return False
        return any(port == node.port and address in network for network, port in self.networks)

    def __str__(self) -> str:
        parts = [f"{len(self.nodes):,} nodes"] * bool(self.nodes)
        return " and ".join([*parts, *([listed(network for network, _ in self.networks)] * bool(self.networks))])


def parse_relay_list(texts: Sequence[str]) -> RelayList:
    """Parse lists of nodes and networks.

    Raises:
        NodeListError: something in them is neither, it is every address there is, or there are too many.
    """
    names: list[str] = []
    networks: list[tuple[_Network, int]] = []
    for word in (word for text in texts for word in words(text)):
        found = None if word.startswith("@") else _network(word)
        if found is None:
            names.append(word)
        else:
            networks.append(found)
    nodes = parse_nodes(names) if names or not networks else ()
    return RelayList(nodes=frozenset((node.host, node.port) for node in nodes), networks=tuple(networks))


def _network(word: str) -> tuple[_Network, int] | None:
    """A network and its port; None: the word is no network."""
    if "/" not in word:
        return None
    network, port = (word, str(DEFAULT_PORT)) if word.count(":") > 1 and word[0] != "[" else host_and_port(word)
    try:
        found = ipaddress.ip_network(network)
    except ValueError as error:
        raise NodeListError(f"{word!r} is no network: {error}", hint=_EXAMPLES) from error
    if not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        raise NodeListError(f"{word!r} has no port from 1 to {_MAX_PORT}", hint=_EXAMPLES)
    if found.prefixlen == 0:
        raise NodeListError(f"{word!r} is every address there is", hint="name the networks that your nodes are in")
    return found, int(port)
