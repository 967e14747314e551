"""One node asked over one kept connection: whatever it answers takes bounded room and time, and is checked."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

import httpcore2
import msgspec

from ingero import __version__
from ingero.errors import IngeroError
from ingero.fleet.access import Access
from ingero.fleet.budget import Budget
from ingero.fleet.clocks import EXCHANGES, Clock, ClockError, Exchange, clock_of
from ingero.fleet.connection import FAILURES, Connection
from ingero.fleet.node_lists import Node
from ingero.fleet.reasons import is_of_nobody_known, is_worth_a_retry, reason_of, was_closed
from ingero.foreign_text import visible
from ingero.serve.row_lines import MEDIA_TYPE, Header, LineReader
from ingero.store.sql_text import Row

ATTEMPTS = 3
_FIRST_WAIT_S, _MOST_WAIT_S = 0.1, 1.0  # before the second attempt, and at most; each a random part of it
_MOST_JSON_BYTES = (
    8 << 20
)  # a diagnosis of many incidents has 1 MiB; as objects, hostile JSON takes some ten times that
_MOST_ERROR_BYTES = 64 << 10
_MOST_ERROR_CHARACTERS = 300
_BUSY = (429, 502, 503, 504)  # as servers and what stands before them say "not now"
_OTHER_AUTHORITY = "--ca-cert with the certificate of the authority that signs those of nodes"
_NO_CERTIFICATE = "if it wants a client's certificate: --client-cert and --client-key"
_NOT_BELIEVED = "if it does not know who signed this client's certificate: one of the authority in its --client-ca"
MOST_CLOCK_S = 5.0  # for the exchanges before a question, and after it: what a node says of its clock costs no answer
_OK, _FIRST_REDIRECT, _FIRST_ERROR, _UNKNOWN_TOKEN, _NO_ADDRESS = 200, 300, 400, 401, 404

_Decoded = TypeVar("_Decoded")
_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)


class NodeError(IngeroError):
    """A node did not answer, or not with an answer.

    is_final: asking again brings nothing. is_said: the node itself says why.
    """

    def __init__(self, reason: str, *, hint: str = "", is_final: bool = True, is_said: bool = False) -> None:
        super().__init__(reason, hint=hint)
        self.is_final, self.is_said = is_final, is_said


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRows:
    """What a node answered to a statement."""

    header: Header
    rows: list[Row]


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    hint: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error = _Error()


class NodeClient:
    """A context manager; what it asks, it asks over the same connection, which is made with the first question.

    On the way clocks are compared: half of the exchanges when the connection stands, half by `compare_clocks`.
    clock_s: how long each half may take; 64 nodes share this machine's time.
    """

    def __init__(
        self,
        node: Node,
        access: Access,
        context: ssl.SSLContext | None,
        budget: Budget,
        *,
        random_part: random.Random,
        clock_s: float = MOST_CLOCK_S,
    ) -> None:
        self.node = node
        self._context, self._known = context, access.known
        self._has_tls, self._has_certificate = context is not None, access.client_cert is not None
        self._headers = {"accept-encoding": "identity", "user-agent": f"ingero/{__version__}"}
        if access.token:
            self._headers["authorization"] = f"Bearer {access.token}"
        self._budget = budget
        self._random = random_part
        self._clock_s = min(clock_s, MOST_CLOCK_S)
        self._connection: Connection | None = None
        self._says_time = True  # until it was asked and did not
        self._before: list[Exchange] = []
        self._after: list[Exchange] = []
        self.certificate_until = ""

    async def __aenter__(self) -> NodeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def rows(self, sql: str, *, limit: int, timeout_s: float) -> NodeRows:
        """The answer to one SELECT, at most so many rows. timeout_s: what the statement may take on the node.

        Raises:
            NodeError: there is no answer.
        """
        body = msgspec.json.encode({"sql": sql, "limit": limit, "timeout_s": timeout_s})

        async def ask() -> NodeRows:
            reader = LineReader(most_rows=limit)
            async with self._asked("POST", "/api/v2/query", MEDIA_TYPE, body) as pieces:
                async for piece in pieces:
                    reader.feed(piece)
            return NodeRows(header=reader.end(), rows=reader.rows)

        return await self._again(ask)

    async def json(self, path: str, kind: type[_Decoded]) -> _Decoded:
        """The answer to a GET, read as that type; what the type does not name is not kept.

        Raises:
            NodeError: there is no answer, or it is of no such type.
        """

        async def ask() -> _Decoded:
            body = bytearray()
            async with self._asked("GET", path, "application/json") as pieces:
                async for piece in pieces:
                    body += piece
                    if len(body) > _MOST_JSON_BYTES:
                        raise NodeError(f"its answer is larger than {_MOST_JSON_BYTES >> 20} MiB")
            try:
                return msgspec.json.decode(bytes(body), type=kind)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise NodeError("its answer is malformed") from error

        return await self._again(ask)

    async def fetch(self, path: str, media_type: str, file: BinaryIO) -> None:
        """The body of the answer to a GET, into a file of ours. How much it may be, the budget says.

        Raises:
            NodeError: there is no answer.
        """

        async def ask() -> None:
            file.seek(0)
            file.truncate()
            async with self._asked("GET", path, media_type) as pieces:
                async for piece in pieces:
                    file.write(piece)

        await self._again(ask)

    async def exchange(self) -> Exchange:
        """One more exchange of clocks, for who asks for nothing else.

        Raises:
            NodeError: there is no answer.
            ClockError: what came is none.
        """

        async def ask() -> Exchange:
            connection = await self._connected()
            try:
                return await connection.exchange()
            except ClockError:
                await self._close()
                raise

        return await self._again(ask)

    async def compare_clocks(self, *, within_s: float) -> None:
        """Makes the other half of the exchanges, if the connection still stands; never longer than that."""
        if self._says_time and self._connection is not None and self._connection.is_usable:
            await self._exchange(self._connection, self._after, min(within_s, self._clock_s))

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Those made so far."""
        return (*self._before, *self._after)

    def clock(self) -> Clock | None:
        """The node's clock, from all exchanges; None: it does not say what it is."""
        try:
            return clock_of(self._before, self._after)
        except ClockError:
            return None

    async def _connected(self) -> Connection:
        """The kept connection, or a new one. Over the first one clocks are compared before the question."""
        if self._connection is not None and self._connection.is_usable:
            return self._connection
        await self._close()
        self._connection = connection = await self._open()
        if self._says_time and not self._before:
            self._says_time = await self._exchange(connection, self._before, self._clock_s)
            if not self._says_time:
                await self._close()
                self._connection = connection = await self._open()
        return connection

    async def _open(self) -> Connection:
        connection = await Connection.open(self.node, self._context, self._known, self._headers)
        self.certificate_until = connection.certificate_until
        return connection

    async def _close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    async def _exchange(self, connection: Connection, found: list[Exchange], within_s: float) -> bool:
        """Whether the node says what its clock is; if not, the connection is of no more use."""

        async def make() -> None:
            found.extend([await connection.exchange() for _ in range(EXCHANGES // 2)])

        try:
            await asyncio.wait_for(make(), within_s)
        except (TimeoutError, asyncio.TimeoutError, ClockError, *FAILURES) as error:  # two classes until Python 3.11
            _log.debug("clock of %s: %s", self.node, type(error).__name__)
            return False
        return True

    async def _again(self, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Asks, and some moments later once more where that can help. A question only reads, so it may come twice."""
        for attempt in range(ATTEMPTS):
            try:
                return await ask()
            except FAILURES as error:
                if attempt + 1 == ATTEMPTS or not is_worth_a_retry(error):
                    raise self._failed(error) from error
            except NodeError as error:
                if attempt + 1 == ATTEMPTS or error.is_final:
                    raise
            most_s = min(_MOST_WAIT_S, _FIRST_WAIT_S * 2**attempt)
            await asyncio.sleep(self._random.uniform(0, most_s))
        raise AssertionError  # the last attempt raises

    def _failed(self, error: Exception) -> NodeError:
        """With TLS 1.3 a node refuses a client's certificate after the handshake: often all one sees is the end."""
        if not self._has_tls or not was_closed(error):
            return NodeError(reason_of(error), hint=_OTHER_AUTHORITY if is_of_nobody_known(error) else "")
        hint = _NO_CERTIFICATE if not self._has_certificate else _NOT_BELIEVED
        return NodeError("it closed the connection before it answered", hint=hint)

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, media_type: str, body: bytes = b""
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of an answer that is one, in pieces. Nobody is followed elsewhere."""
        connection = await self._connected()
        response = await connection.ask(method, path, {"content-type": "application/json"} if body else {}, body)
        number, is_whole = self._budget.begin(), False
        try:
            await self._refuse(response, number, media_type)
            yield self._pieces(response, number)
            is_whole = True
        finally:
            self._budget.end(number, is_kept=is_whole)
            await response.aclose()

    async def _pieces(self, response: httpcore2.Response, number: int) -> AsyncIterator[bytes]:
        async for piece in response.aiter_stream():
            self._budget.take(number, len(piece))
            yield piece

    async def _refuse(self, response: httpcore2.Response, number: int, media_type: str) -> None:
        """Raises NodeError unless it is an answer."""
        status = response.status
        if _FIRST_REDIRECT <= status < _FIRST_ERROR:
            raise NodeError("it sends elsewhere, which is not followed", hint="name the address that it means")
        if status == _OK:
            kind = _header(response, b"content-type").partition(";")[0].strip().lower()
            if kind != media_type or _header(response, b"content-encoding") not in ("", "identity"):
                raise NodeError("it is not ingero: another service answers there")
            return
        said = await self._said(response, number)
        if status == _UNKNOWN_TOKEN:
            raise NodeError("it requires a token that it knows", hint="--token-file FILE, or INGERO_FLEET_TOKEN")
        if status == _NO_ADDRESS and not said.message:
            raise NodeError("it is not ingero, or an older version", hint="update it")
        text = visible(said.message)[:_MOST_ERROR_CHARACTERS] or f"HTTP status {status}"
        hint = visible(said.hint)[:_MOST_ERROR_CHARACTERS]
        raise NodeError(text, hint=hint, is_final=status not in _BUSY, is_said=bool(said.message))

    async def _said(self, response: httpcore2.Response, number: int) -> _Error:
        """What an answer that is an error says of itself; nothing where that is none of ours."""
        body = bytearray()
        async for piece in self._pieces(response, number):
            body += piece
            if len(body) > _MOST_ERROR_BYTES:
                return _Error()
        try:
            return msgspec.json.decode(bytes(body), type=_Refusal).error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _Error()


def _header(response: httpcore2.Response, name: bytes) -> str:
    """The value of a header that stands there once; "" where it does not, none that is known where it does twice."""
    return ", ".join(value.decode("latin-1") for key, value in response.headers if key.lower() == name)
