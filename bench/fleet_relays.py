"""10,000 nodes over two levels of relays, each a process of its own: how many connections does any of them hold?

Run: python -m bench.fleet_relays [NODES]. The nodes are those of bench.fleet, the relays real servers, forked from one
process so that their code is in memory once. Every relay has 64 of what is below it, as the documentation advises. The
most connections that a process ever had open are counted where sockets are made and closed. All processes share this
machine's cores: times say nothing of hosts of their own. Needs some 6 GB of memory for 10,000 nodes.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from uvicorn import Server

from bench.fleet import beside, certificates, node_address
from ingero.fleet.access import Access, client_context
from ingero.fleet.client import NodeClient, NodeRows
from ingero.fleet.fan_out import Reach, ask_nodes
from ingero.fleet.node_lists import Node
from ingero.fleet.relay_list import parse_relay_list
from ingero.fleet.relay_server import RelayService
from ingero.fleet.relays import via_of
from ingero.serve.dashboard.exposure import Exposure
from ingero.serve.dashboard.server import answering_to, certificate_of, create_server, server_context
from ingero.serve.http.addresses import Address, listen
from ingero.serve.recording_source import RecordingSource
from tests.unit.fleet_nodes import record_node

MAX_CONNECTIONS, MAX_LEVELS = 128, 3
_NODES = 10_000
_FAN_OUT = 64
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_NODES_OF_A_PROCESS = 5_000  # each is a socket that listens, and as many connections
_TIMEOUT_S = 900.0  # all of it on this machine's few cores at once


class _Counted(socket.socket):
    """A socket that is counted while it is open."""

    open_now: set[int] = set()  # noqa: RUF012  # of the process
    most = 0
    report: Path | None = None

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # as socket.socket takes them
        if self.family == socket.AF_INET:
            self.open_now.add(id(self))
            if len(self.open_now) > _Counted.most:
                _Counted.most = len(self.open_now)
                if self.report:
                    self.report.write_text(str(self.most))

    def close(self) -> None:
        """Closes it, perhaps once more."""
        self.open_now.discard(id(self))
        super().close()


def _count(report: Path | None = None) -> None:
    """From here on this process counts its connections, and says the most in a file."""
    _Counted.report = report
    socket.socket = _Counted  # type: ignore[misc]  # what accepts and connects takes it from there


@dataclass(frozen=True, slots=True)
class _Level:
    """The relays of one level that query the same nodes."""

    nodes: tuple[Node, ...]
    reports: tuple[Path, ...]

    def most(self) -> int:
        """Connections that one of them had at once."""
        return max(int(path.read_text()) for path in self.reports)


def main() -> None:
    """Prints the figures."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    count = int(sys.argv[1]) if sys.argv[1:] else _NODES
    with tempfile.TemporaryDirectory(prefix="ingero-relays-") as name, ExitStack() as stack:
        folder = Path(name)
        sizes = _sizes(count)
        access = certificates(folder, count, relays=[_relay_address(place) for place in range(sum(sizes))])
        nodes = tuple(_nodes(stack, name, count))
        record_node(folder / "relay.db", "relay")
        listed = [f"127.0.0.0/8:{port}" for port in sorted({node.port for node in nodes})]
        levels: list[_Level] = []
        for size in reversed(sizes):  # the last ones first: the others have to know them
            first = sum(len(level.nodes) for level in levels)
            allowed = [*listed, *(node.authority for level in levels for node in level.nodes)]
            levels.insert(0, stack.enter_context(_relays(folder, first, size, access, allowed)))
        _ask(nodes, levels, access)


def _sizes(count: int) -> list[int]:
    """Relays on each level, those that the client asks first."""
    found: list[int] = []
    while (below := found[0] if found else count) > _FAN_OUT:
        found.insert(0, math.ceil(below / _FAN_OUT))
    return found


def _ask(nodes: tuple[Node, ...], levels: Sequence[_Level], access: Access) -> None:
    async def ask(client: NodeClient) -> NodeRows:
        return await client.rows("SELECT 1", limit=10, timeout_s=_TIMEOUT_S)

    _count()
    via = via_of(nodes, [level.nodes for level in levels])
    reach = Reach(nodes=nodes, access=access, context=client_context(access), timeout_s=_TIMEOUT_S, via=via)
    begin_s, cpu_s = time.monotonic(), time.process_time()
    found = ask_nodes(reach, ask)
    cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - begin_s
    levels_said = " + ".join(str(len(level.nodes)) for level in levels)
    print(f"{len(nodes):,} nodes over {levels_said} relays: {len(found.answered):,} answered, {wall_s:.1f} s")
    print(f"  client: {cpu_s / len(nodes) * 1e3:.3f} ms of CPU a node, {_Counted.most} connections at most")
    for place, level in enumerate(levels, 1):
        print(f"  relays of level {place}: {level.most()} connections at most")
    most = max(_Counted.most, *(level.most() for level in levels))
    is_kept = most <= MAX_CONNECTIONS and len(levels) + 1 <= MAX_LEVELS and len(found.answered) == len(nodes)
    print(f"  most of any process: {most}, bar {MAX_CONNECTIONS}; {len(levels) + 1} levels, bar {MAX_LEVELS}: "
          f"{'kept' if is_kept else 'NOT KEPT'}")  # fmt: skip
    for one in found.missing[:3]:
        print(f"  missing: {one.node}: {one.reason}")


def _nodes(stack: ExitStack, folder: str, count: int) -> Iterator[Node]:
    """Nodes in as many processes as they need."""
    for first in range(0, count, _NODES_OF_A_PROCESS):
        its = min(_NODES_OF_A_PROCESS, count - first)
        [port] = stack.enter_context(beside("--serve", folder, its, first))
        yield from (Node(node_address(place), port) for place in range(first, first + its))


def _relay_address(place: int) -> str:
    return f"127.2.{place // 250}.{place % 250 + 1}"


@contextmanager
def _relays(folder: Path, first: int, count: int, access: Access, allowed: Sequence[str]) -> Iterator[_Level]:
    """Starts relays, each a child process that serves until it is killed. first: the number of the first one."""
    addresses = [Address(_relay_address(place), 0) for place in range(first, first + count)]
    listening = [listen(address) for address in addresses]
    reports = tuple(folder / f"relay-{place}.most" for place in range(first, first + count))
    server = _server(folder, addresses[0], access, allowed)  # one for all: they differ in their socket only
    children = []
    sys.stdout.flush()
    for one, report in zip(listening, reports, strict=True):
        report.write_text("0")
        child = os.fork()
        if child == 0:
            _serve_until_killed(server, one, report)
        children.append(child)
    nodes = tuple(Node(*one.getsockname()) for one in listening)
    for one in listening:
        one.close()
    try:
        yield _Level(nodes, reports)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _serve_until_killed(server: Server, listening: socket.socket, report: Path) -> NoReturn:
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with the bench, however that ends
        _count(report)
        asyncio.run(server.serve(sockets=[listening]))
    finally:
        os._exit(1)


def _server(folder: Path, address: Address, access: Access, allowed: Sequence[str]) -> Server:
    """A node's server that relays; its certificate is for the addresses of all relays."""
    context = client_context(access)
    assert context is not None
    exposure = Exposure(
        address=address, certificate=folder / "relay.pem", key=folder / "relay.key", client_ca=folder / "ca.pem"
    )
    certificate = certificate_of(exposure)
    relay = RelayService(access=access, context=context, allowed=parse_relay_list(allowed))
    source = RecordingSource(folder / "relay.db")
    return create_server(
        source, answering_to(exposure, certificate), server_context(exposure, certificate), relay.add_to
    )


if __name__ == "__main__":
    main()
