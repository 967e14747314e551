"""A node with a clock that is off, behind a proxy that delays what goes through it: real sockets on the loopback."""

from __future__ import annotations

import asyncio
import random
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from ingero.fleet.clocks import Exchange
from ingero.fleet.node_lists import Node

_STAMPS = struct.Struct("!qq")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDelay:
    """The one-way delay of messages in s: minimum, mean excess, and the ratio and length of additional waits."""

    least_s: float
    beyond_s: float
    waits: float = 0.0
    wait_s: float = 0.004

    def delay(self, rng: random.Random) -> float:
        """The delay of one message in s."""
        waited = self.wait_s if rng.random() < self.waits else 0.0
        return self.least_s + rng.expovariate(1 / self.beyond_s) + waited


def simulated(
    rng: random.Random, there: MessageDelay, back: MessageDelay, *, offset_ns: int, ppm: float, count: int
) -> tuple[list[Exchange], int]:
    """Exchanges with a node whose clock drifts, and its true offset at the first of them."""
    now_s, found = 0.0, []

    def node_ns(at_s: float) -> int:
        return round(at_s * 1e9 * (1 + ppm / 1e6)) + offset_ns + 10**18

    for _ in range(count):
        received_s = now_s + there.delay(rng)
        sent_s = received_s + rng.expovariate(1 / 50e-6)
        answered_s = sent_s + back.delay(rng)
        found.append(
            Exchange(
                asked_ns=round(now_s * 1e9) + 10**18, received_ns=node_ns(received_s), sent_ns=node_ns(sent_s),
                answered_ns=round(answered_s * 1e9) + 10**18,
            )
        )  # fmt: skip
        now_s = answered_s + rng.uniform(0, 0.02)
    return found, offset_ns


@asynccontextmanager
async def node_behind_proxy(
    there: MessageDelay, back: MessageDelay, offset_ns: Callable[[], int], rng: random.Random
) -> AsyncIterator[Callable[[int], Awaitable[list[Exchange]]]]:
    """A function that makes exchanges with a node behind a delaying proxy over one connection."""

    tasks: list[asyncio.Task[None] | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readexactly(1)
                received_ns = time.time_ns() + offset_ns()
                writer.write(_STAMPS.pack(received_ns, time.time_ns() + offset_ns()))
        writer.close()
        await _closed(writer)

    node = await asyncio.start_server(answer, "127.0.0.1", 0)
    node_port = node.sockets[0].getsockname()[1]

    async def proxied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        from_node, to_node = await asyncio.open_connection("127.0.0.1", node_port)
        await asyncio.gather(_forward(reader, to_node, there, rng), _forward(from_node, writer, back, rng))

    proxy = await asyncio.start_server(proxied, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.sockets[0].getsockname()[1])

    async def exchange(count: int) -> list[Exchange]:
        found = []
        for _ in range(count):
            asked_ns = time.time_ns()
            writer.write(b"?")
            received_ns, sent_ns = _STAMPS.unpack(await reader.readexactly(_STAMPS.size))
            answered_ns = time.time_ns()
            found.append(Exchange(asked_ns=asked_ns, received_ns=received_ns, sent_ns=sent_ns, answered_ns=answered_ns))
        return found

    try:
        yield exchange
    finally:
        writer.close()
        await _closed(writer)
        await asyncio.gather(*(task for task in tasks if task), return_exceptions=True)
        for server in (proxy, node):
            server.close()
            await server.wait_closed()


@contextmanager
def delaying_proxy(
    node: Node, there: MessageDelay, back: MessageDelay, rng: random.Random
) -> Iterator[tuple[Node, list[int]]]:
    """A proxy that delays each message to a node: its address, and a list with an item for each connection."""
    seen: list[int] = []
    found: list[int] = []
    ends: list[asyncio.StreamWriter] = []
    is_ready = threading.Event()
    loop = asyncio.new_event_loop()
    is_over = asyncio.Event()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(len(seen))
        from_node, to_node = await asyncio.open_connection(node.host, node.port)
        ends.extend((writer, to_node))
        await asyncio.gather(_forward(reader, to_node, there, rng), _forward(from_node, writer, back, rng))

    async def serve() -> None:
        async with await asyncio.start_server(connect, "127.0.0.1", 0) as server:
            found.append(server.sockets[0].getsockname()[1])
            is_ready.set()
            await is_over.wait()
            for end in ends:
                end.close()
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    is_ready.wait()
    try:
        yield Node("127.0.0.1", found[0]), seen
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join()
        loop.close()


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: MessageDelay, rng: random.Random
) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            await asyncio.sleep(way.delay(rng))
            writer.write(data)
    writer.close()
    await _closed(writer)


async def _closed(writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        await writer.wait_closed()


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
