"""Limits for clients before they are authenticated: time for a request, and connections.

uvicorn waits for the rest of a request, and of a TLS handshake, for as long as the client likes.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar, TypedDict

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0  # from its first byte, or that of its connection, to its last; a head is 1 KB, a statement 100 at most
HANDSHAKE_S = 10.0
MAX_OPEN = 1024  # connections including those in their TLS handshake: up to 100 KB each
MAX_CONNECTIONS = 256  # each answer takes one of 40 threads; more would only wait
MAX_CONNECTIONS_PER_PEER = 64  # browsers open six; on this host all clients are one peer


class TooManyConnectionsError(ConnectionError):
    """A connection is refused before a byte of it is read."""


class Options(TypedDict):
    """Options of `uvicorn.Config` that put the limits in force."""

    http: type[asyncio.Protocol]
    loop: str
    limit_concurrency: int


def limits() -> Options:
    """The options for one server, with a connection count of its own."""

    class Limited(LimitedProtocol):
        alive: ClassVar[weakref.WeakSet[LimitedProtocol]] = weakref.WeakSet()
        of_peer: ClassVar[Counter[str]] = Counter()
        waiting: ClassVar[dict[LimitedProtocol, None]] = {}

    # more than are let in, so that uvicorn does not answer 503 where a connection was let in
    return {"http": Limited, "loop": f"{__name__}:HandshakeLoop", "limit_concurrency": MAX_OPEN + 1}


class HandshakeLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers give a client HANDSHAKE_S for the handshake of TLS, instead of a minute."""

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        """See `asyncio.loop.create_server`."""
        if options.get("ssl"):
            options.setdefault("ssl_handshake_timeout", HANDSHAKE_S)
        return await super().create_server(*arguments, **options)


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for each request and a limit on connections per client.

    When all connections are taken, a new one replaces the one that has been idle longest, so that idle clients cannot
    lock others out.
    """

    alive: ClassVar[weakref.WeakSet[LimitedProtocol]]  # those in their handshake, too
    of_peer: ClassVar[Counter[str]]  # connections by address, after their handshake
    waiting: ClassVar[dict[LimitedProtocol, None]]  # for the rest of their request, since when in this order

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if len(self.alive) >= MAX_OPEN:
            raise TooManyConnectionsError(f"more than {MAX_OPEN} connections")
        super().__init__(*arguments, **options)
        self.alive.add(self)
        self.peer = ""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there, and its handshake is over."""
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else ""
        self.of_peer[self.peer] += 1
        self._wait_for_a_request()
        if self.of_peer[self.peer] > MAX_CONNECTIONS_PER_PEER:
            self._end_one(one for one in self.waiting if one.peer == self.peer)
        elif self.of_peer.total() > MAX_CONNECTIONS:
            self._end_one(iter(self.waiting))

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, in whatever pieces they come."""
        if self._deadline is None and self.conn.their_state is h11.IDLE:
            self._wait_for_a_request()
        super().data_received(data)
        if self.conn.their_state not in {h11.IDLE, h11.SEND_BODY}:
            self._waits_no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed, by either side."""
        self._waits_no_more()
        self.alive.discard(self)
        self.of_peer[self.peer] -= 1
        if self.of_peer[self.peer] <= 0:
            del self.of_peer[self.peer]
        super().connection_lost(exc)

    def end(self) -> None:
        """Closes the connection at once."""
        self._waits_no_more()
        self.transport.abort()

    @staticmethod
    def _end_one(longest_first: Iterator[LimitedProtocol]) -> None:
        one = next(longest_first, None)
        if one is not None:
            one.end()

    def _wait_for_a_request(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_S, self.end)
        self.waiting[self] = None

    def _waits_no_more(self) -> None:
        self.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
