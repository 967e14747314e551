"""What asking many nodes costs, their clocks compared on the way: `python -m bench.fleet [NODES [RELAYS [ROUNDS]]]`.

Against bare TLS requests in the same run, and through relays against asking directly.

A process of its own plays the nodes: one address of 127/8 each, a certificate for each ten, TLS 1.3, clients with a
certificate only, an answer of one row. "bare" is the least that asking can cost here: asyncio's own
streams, one handshake, one request, the answer read and thrown away, as many at once. Ratios are what counts.

The relays are real servers, all in one process: with the nodes they share this machine's cores, so that the time on the
wall is not what it is where each is a host. What relays save is the client's CPU, and its connections.
"""

from __future__ import annotations

import asyncio
import re
import resource
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from ingero.fleet.access import Access, client_context
from ingero.fleet.authority import make_authority, make_certificate
from ingero.fleet.client import NodeClient, NodeRows
from ingero.fleet.clocks import EXCHANGES
from ingero.fleet.fan_out import Reach, ask_nodes
from ingero.fleet.node_lists import Node
from ingero.fleet.relay_frames import AT_ONCE
from ingero.fleet.relay_list import parse_relay_list
from ingero.fleet.relay_server import RelayService
from ingero.fleet.relays import via_of
from ingero.serve.dashboard.exposure import Exposure
from ingero.serve.dashboard.server import answering_to, certificate_of, create_server, server_context
from ingero.serve.http.addresses import Address, listen
from ingero.serve.recording_source import RecordingSource
from ingero.serve.sql import Answer
from ingero.serve.structured.row_lines import Identity, row_lines
from tests.unit.fleet_nodes import record_node

_NODES = 300
_NODES_OF_A_CERTIFICATE = 10
_ROUNDS = 3
_TIMEOUT_S = 60.0
_MAX_CPU, _MAX_WALL = 2.0, 1.5  # of what bare requests take
_RELAY = "127.2.0.1"
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def main() -> None:
    """Prints a line for each way of asking, the best of some rounds."""
    if sys.argv[1:2] in (["--serve"], ["--relay"]):
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        folder, *numbers = sys.argv[2:]
        asyncio.run((_serve if sys.argv[1] == "--serve" else _relay)(Path(folder), *map(int, numbers)))
        return
    given = [int(text) for text in sys.argv[1:]]
    count, relays, rounds = [*given, *(_NODES, 0, _ROUNDS)[len(given) :]]
    with tempfile.TemporaryDirectory(prefix="ingero-fleet-") as name:
        access = certificates(Path(name), count, [_RELAY] if relays else [])
        with beside("--serve", name, count) as [port]:
            reach = Reach(
                nodes=tuple(Node(node_address(place), port) for place in range(count)), access=access,
                context=client_context(access), timeout_s=_TIMEOUT_S,
            )  # fmt: skip
            bare = min(_cost(lambda: asyncio.run(_bare(reach))) for _ in range(rounds))
            _print("bare TLS 1.3 requests", count, bare)
            ours = min(_cost(lambda: _ours(reach)) for _ in range(rounds))
            _print("query --nodes", count, ours)
            _print_ratio("query --nodes / bare", ours, bare)
            is_kept = ours[0] <= _MAX_CPU * bare[0] and ours[1] <= _MAX_WALL * bare[1]
            print(f"at most {_MAX_CPU} and {_MAX_WALL}: {'kept' if is_kept else 'NOT KEPT'}", flush=True)
            if relays:
                with beside("--relay", name, relays, port) as ports:
                    levels = [[Node(_RELAY, port) for port in ports]]
                    behind = replace(reach, via=via_of(reach.nodes, levels))
                    through = min(_cost(lambda: _ours(behind)) for _ in range(rounds))
                _print(f"the same --via {relays}", count, through)
                _print_ratio("--via / direct", through, ours)


@contextmanager
def beside(what: str, folder: str, *numbers: int) -> Iterator[list[int]]:
    """A process that serves; the ports that it says."""
    command = [sys.executable, "-m", "bench.fleet", what, folder, *map(str, numbers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield [int(port) for port in process.stdout.readline().split()]
        finally:
            process.terminate()


def _print(text: str, count: int, cost: tuple[float, float]) -> None:
    cpu_s, wall_s = cost
    print(f"{text:22} {count:,} nodes  {wall_s:.2f} s  {cpu_s / count * 1e3:.3f} ms of CPU a node", flush=True)


def _print_ratio(text: str, one: tuple[float, float], other: tuple[float, float]) -> None:
    print(f"{text}: CPU {one[0] / other[0]:.3f}, wall time {one[1] / other[1]:.2f}", flush=True)


def _cost(ask: Callable[[], None]) -> tuple[float, float]:
    """Seconds of CPU of this process, and of the clock on the wall."""
    before, begin_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    ask()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - begin_s


def _ours(reach: Reach) -> None:
    async def ask(client: NodeClient) -> NodeRows:
        return await client.rows("SELECT 1", limit=10, timeout_s=_TIMEOUT_S)

    found = ask_nodes(reach, ask)
    assert len(found.answered) == len(reach.nodes), found.missing[:3]
    known = sum(one.clock is not None and one.clock.exchanges == EXCHANGES for one in found.answered)
    if known < len(reach.nodes):  # a machine that is busy with other things makes exchanges take too long
        print(f"  clocks are known of {known:,} nodes only", flush=True)


async def _bare(reach: Reach) -> None:
    turn = asyncio.Semaphore(AT_ONCE)

    async def ask(node: Node) -> None:
        async with turn:
            reader, writer = await asyncio.open_connection(node.host, node.port, ssl=reach.context)
            writer.write(b"POST /api/v2/query HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            assert await reader.read(-1)
            writer.close()

    found: list[Awaitable[None]] = [ask(node) for node in reach.nodes]
    await asyncio.gather(*found)


async def _serve(folder: Path, count: int, first: int = 0) -> None:
    """Serves nodes from a number on, which is the first of its certificate."""
    of_each = range(first, first + count, _NODES_OF_A_CERTIFICATE)
    contexts = [_server_context(folder, f"nodes-{number}") for number in of_each]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = writer.get_extra_info("sockname")[0]
        who = Identity(nodes=[host], machine_id="", recording=host)
        body = b"".join(row_lines(Answer(columns=("x",), rows=[(1,)], is_truncated=False, elapsed_ns=1, notes=()), who))
        is_kept = True
        try:
            while is_kept:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET /api/v2/time "):
                    stamps = b'{"received_ns":%d,"sent_ns":%d}' % (time.time_ns(), time.time_ns())
                    writer.write(_answer("application/json", stamps))
                else:
                    found = _LENGTH.search(head)
                    await reader.readexactly(int(found[1]) if found else 0)
                    writer.write(_answer("application/x-ndjson", body))
                await writer.drain()
                is_kept = b"Connection: close" not in head
        except (OSError, asyncio.IncompleteReadError):
            pass
        writer.close()

    servers: list[asyncio.Server] = []
    for place in range(count):
        port = servers[0].sockets[0].getsockname()[1] if servers else 0
        context = contexts[place // _NODES_OF_A_CERTIFICATE]
        servers.append(await asyncio.start_server(answer, node_address(first + place), port, ssl=context, backlog=16))
    print(servers[0].sockets[0].getsockname()[1], flush=True)
    await asyncio.gather(*(one.serve_forever() for one in servers))


async def _relay(folder: Path, count: int, port: int) -> None:
    """Serves relays, which are real node servers, each on its own port. port: of the nodes."""
    access = Access(ca_cert=folder / "ca.pem", client_cert=folder / "client.pem", client_key=folder / "client.key")
    to_nodes = client_context(access)
    assert to_nodes is not None
    source = RecordingSource(record_node(folder / "relay.db", "relay"))
    listening = [listen(Address(_RELAY, 0)) for _ in range(count)]
    serving = []
    for one in listening:
        exposure = Exposure(
            address=Address(_RELAY, one.getsockname()[1]), certificate=folder / "relay.pem", key=folder / "relay.key",
            client_ca=folder / "ca.pem",
        )  # fmt: skip
        certificate = certificate_of(exposure)
        relay = RelayService(access=access, context=to_nodes, allowed=parse_relay_list([f"127.1.0.0/16:{port}"]))
        context = server_context(exposure, certificate)
        server = create_server(source, answering_to(exposure, certificate), context, relay.add_to)
        serving.append(server.serve(sockets=[one]))
    print(*(one.getsockname()[1] for one in listening), flush=True)
    await asyncio.gather(*serving)


def _answer(kind: str, body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _server_context(folder: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def certificates(folder: Path, count: int, relays: Sequence[str]) -> Access:
    """Makes the certificates of the nodes, of relays at these addresses, and of a client."""
    now = datetime.now(timezone.utc)
    make_authority(folder, name="bench", now=now)
    for first in range(0, count, _NODES_OF_A_CERTIFICATE):
        names = [node_address(place) for place in range(first, first + _NODES_OF_A_CERTIFICATE)]
        make_certificate(folder, f"nodes-{first}", names=names, is_server=True, days=1, replaces=True, now=now)
    if relays:
        make_certificate(folder, "relay", names=list(relays), is_server=True, days=1, replaces=True, now=now)
    client = make_certificate(folder, "client", names=["client"], is_server=False, days=1, replaces=True, now=now)
    return Access(ca_cert=folder / "ca.pem", client_cert=client.certificate, client_key=client.key)


def node_address(place: int) -> str:
    """The address of a node by its number."""
    return f"127.1.{place // 250}.{place % 250 + 1}"


if __name__ == "__main__":
    main()
