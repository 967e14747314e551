"""What asking many nodes costs, their clocks compared on the way: `python -m bench.fleet [NODES]`, against bare TLS
requests in the same run.

A process of its own plays the nodes: one address of 127/8 each, a certificate for each ten, TLS 1.3, clients with a
certificate only, an answer of one row. "bare" is the least that asking can cost here: asyncio's own
streams, one handshake, one request, the answer read and thrown away, as many at once. Ratios are what counts.
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
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from pathlib import Path

from ingero.fleet.access import Access, client_context
from ingero.fleet.authority import make_authority, make_certificate
from ingero.fleet.client import NodeClient, NodeRows
from ingero.fleet.clocks import EXCHANGES
from ingero.fleet.fan_out import AT_ONCE, ask_nodes
from ingero.fleet.node_lists import Node
from ingero.serve.row_lines import Identity, row_lines
from ingero.serve.sql import Answer

_NODES = 300
_NODES_OF_A_CERTIFICATE = 10
_ROUNDS = 3
_TIMEOUT_S = 60.0
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def main() -> None:
    """Prints a line for each way of asking, the best of some rounds."""
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(_serve(Path(sys.argv[2]), int(sys.argv[3])))
        return
    count = int(sys.argv[1]) if len(sys.argv) > 1 else _NODES
    with tempfile.TemporaryDirectory(prefix="ingero-fleet-") as name:
        access = _certificates(Path(name), count)
        stubs = subprocess.Popen(
            [sys.executable, "-m", "bench.fleet", "--serve", name, str(count)], stdout=subprocess.PIPE, text=True
        )
        assert stubs.stdout is not None
        try:
            port = int(stubs.stdout.readline())
            nodes = [Node(_address(place), port) for place in range(count)]
            context = client_context(access)
            assert context is not None
            bare = min(_cost(lambda: asyncio.run(_bare(nodes, context))) for _ in range(_ROUNDS))
            ours = min(_cost(lambda: _ours(nodes, access, context)) for _ in range(_ROUNDS))
        finally:
            stubs.terminate()
            stubs.wait()
    for text, (cpu_s, wall_s) in (("bare TLS 1.3 requests", bare), ("query --nodes", ours)):
        print(f"{text:22} {count:,} nodes  {wall_s:.2f} s  {cpu_s / count * 1e3:.2f} ms of CPU a node")
    print(f"query --nodes / bare: CPU {ours[0] / bare[0]:.2f}, wall time {ours[1] / bare[1]:.2f}")


def _cost(ask: Callable[[], None]) -> tuple[float, float]:
    """Seconds of CPU of this process, and of the clock on the wall."""
    before, begin_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    ask()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - begin_s


def _ours(nodes: list[Node], access: Access, context: ssl.SSLContext) -> None:
    async def ask(client: NodeClient) -> NodeRows:
        return await client.rows("SELECT 1", limit=10, timeout_s=_TIMEOUT_S)

    found = ask_nodes(nodes, access, context, ask, timeout_s=_TIMEOUT_S)
    assert len(found.answered) == len(nodes), found.missing[:3]
    assert all(one.clock is not None and one.clock.exchanges == EXCHANGES for one in found.answered)


async def _bare(nodes: list[Node], context: ssl.SSLContext) -> None:
    turn = asyncio.Semaphore(AT_ONCE)

    async def ask(node: Node) -> None:
        async with turn:
            reader, writer = await asyncio.open_connection(node.host, node.port, ssl=context)
            writer.write(b"POST /api/v2/query HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            assert await reader.read(-1)
            writer.close()

    found: list[Awaitable[None]] = [ask(node) for node in nodes]
    await asyncio.gather(*found)


async def _serve(folder: Path, count: int) -> None:
    contexts = [_server_context(folder, f"nodes-{first}") for first in range(0, count, _NODES_OF_A_CERTIFICATE)]

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
        servers.append(await asyncio.start_server(answer, _address(place), port, ssl=context, backlog=16))
    print(servers[0].sockets[0].getsockname()[1], flush=True)
    await asyncio.gather(*(one.serve_forever() for one in servers))


def _answer(kind: str, body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _server_context(folder: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _certificates(folder: Path, count: int) -> Access:
    now = datetime.now(timezone.utc)
    make_authority(folder, name="bench", now=now)
    for first in range(0, count, _NODES_OF_A_CERTIFICATE):
        names = [_address(place) for place in range(first, first + _NODES_OF_A_CERTIFICATE)]
        make_certificate(folder, f"nodes-{first}", names=names, is_server=True, days=1, replaces=True, now=now)
    client = make_certificate(folder, "client", names=["client"], is_server=False, days=1, replaces=True, now=now)
    return Access(ca_cert=folder / "ca.pem", client_cert=client.certificate, client_key=client.key)


def _address(place: int) -> str:
    return f"127.1.{place // 250}.{place % 250 + 1}"


if __name__ == "__main__":
    main()
