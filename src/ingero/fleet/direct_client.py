"""One node asked over one kept connection of ours, on which clocks are compared and failures tried again."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

import httpcore2
import msgspec

from ingero import __version__
from ingero.fleet.access import Access, expired_on
from ingero.fleet.budget import Budget
from ingero.fleet.client import JSON_TYPE, NodeClient, NodeError, Question
from ingero.fleet.clocks import EXCHANGES, Clock, ClockError, Exchange, clock_of
from ingero.fleet.connection import FAILURES, Connection
from ingero.fleet.node_lists import Node
from ingero.fleet.reasons import is_unknown_authority, is_worth_a_retry, reason_of, was_closed
from ingero.foreign_text import visible

ATTEMPTS = 3
_FIRST_WAIT_S, _MAX_WAIT_S = 0.1, 1.0  # before the second attempt, and at most; each a random part of it
_MAX_ERROR_BYTES = 64 << 10
_MAX_ERROR_CHARACTERS = 300
_BUSY = (429, 502, 503, 504)  # as servers and what stands before them say "not now"
_OTHER_AUTHORITY = "--ca-cert with the certificate of the authority that signs those of nodes"
_NO_CERTIFICATE = "if it wants a client's certificate: --client-cert and --client-key"
_NOT_BELIEVED = "if it does not know who signed this client's certificate: one of the authority in its --client-ca"
_RENEW = "`ingero certs client NAME --force` makes a new one"
MAX_CLOCK_S = 5.0  # for the exchanges before a question, and after it: what a node says of its clock costs no answer
_OK, _FIRST_REDIRECT, _FIRST_ERROR, _UNKNOWN_TOKEN, _NO_ADDRESS = 200, 300, 400, 401, 404

_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    hint: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error = _Error()


class DirectClient(NodeClient):
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
        clock_s: float = MAX_CLOCK_S,
    ) -> None:
        super().__init__(node)
        self._context, self._known = context, access.known
        self._has_tls, self._certificate = context is not None, access.client_cert
        self._headers = {"accept-encoding": "identity", "user-agent": f"ingero/{__version__}"}
        if access.token:
            self._headers["authorization"] = f"Bearer {access.token}"
        self._budget = budget
        self._random = random_part
        self._clock_s = min(clock_s, MAX_CLOCK_S)
        self._connection: Connection | None = None
        self._reports_time = True  # until it was asked and did not
        self._before: list[Exchange] = []
        self._after: list[Exchange] = []

    async def __aenter__(self) -> DirectClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def answer(self, question: Question, until: AsyncExitStack) -> AsyncIterator[bytes]:
        """The body of an answer as it comes, until the stack ends; asked again only as long as nothing has come.

        Raises:
            NodeError: there is no answer.
        """
        return await self._again(lambda: until.enter_async_context(self._asked(question)))

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
        if self._reports_time and self._connection is not None and self._connection.is_usable:
            await self._exchange(self._connection, self._after, min(within_s, self._clock_s))

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The clock exchanges made so far."""
        return (*self._before, *self._after)

    def clock(self) -> Clock | None:
        """The node's clock, from all exchanges; None: it does not say what it is."""
        try:
            return clock_of(self._before, self._after)
        except ClockError:
            return None

    def clock_throughout(self) -> Clock | None:
        """The node's clock, if it was compared before and after all questions, and no clock was set in between."""
        known = self.clock()
        return known if known is not None and self._after and not known.steps else None

    async def _connected(self) -> Connection:
        """The kept connection, or a new one. Over the first one clocks are compared before the question."""
        if self._connection is not None and self._connection.is_usable:
            return self._connection
        await self._close()
        self._connection = connection = await self._open()
        if self._reports_time and not self._before:
            self._reports_time = await self._exchange(connection, self._before, self._clock_s)
            if not self._reports_time:
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

    async def _again(
        self, ask: Callable[[], Awaitable[_Answer]], *, may_repeat: Callable[[], bool] = lambda: True
    ) -> _Answer:
        """Asks, and some moments later once more where that can help. A question only reads, so it may come twice."""
        for attempt in range(ATTEMPTS):
            try:
                return await ask()
            except FAILURES as error:
                if attempt + 1 == ATTEMPTS or not (may_repeat() and is_worth_a_retry(error)):
                    raise self._failed(error) from error
            except NodeError as error:
                if attempt + 1 == ATTEMPTS or error.is_final:
                    raise
            most_s = min(_MAX_WAIT_S, _FIRST_WAIT_S * 2**attempt)
            await asyncio.sleep(self._random.uniform(0, most_s))
        raise AssertionError  # the last attempt raises

    def _failed(self, error: Exception) -> NodeError:
        """With TLS 1.3 a node refuses a client's certificate after the handshake: often all one sees is the end."""
        if not self._has_tls or not was_closed(error):
            return NodeError(reason_of(error), hint=_OTHER_AUTHORITY if is_unknown_authority(error) else "")
        certificate = self._certificate
        day = expired_on(certificate, time.time()) if certificate else ""
        expired = f"the client's certificate, {certificate}, expired on {day}: {_RENEW}"
        return NodeError(
            "it closed the connection before it answered",
            hint=_NO_CERTIFICATE if certificate is None else expired if day else _NOT_BELIEVED,
        )

    @asynccontextmanager
    async def _asked(self, question: Question) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of a successful answer, in pieces. Redirects are not followed."""
        connection = await self._connected()
        method, headers = ("POST", {"content-type": JSON_TYPE}) if question.body else ("GET", {})
        response = await connection.ask(method, question.path, headers, question.body)
        number, is_whole = self._budget.begin(), False
        try:
            await self._refuse(response, number, question.media_type)
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
            raise NodeError("it redirects elsewhere, which is not followed", hint="name the address it redirects to")
        if status == _OK:
            kind = _header(response, b"content-type").partition(";")[0].strip().lower()
            if kind != media_type or _header(response, b"content-encoding") not in ("", "identity"):
                raise NodeError("it is not ingero: another service answers there")
            return
        problem = await self._problem_of(response, number)
        if status == _UNKNOWN_TOKEN:
            raise NodeError("it requires a valid token", hint="--token-file FILE, or INGERO_FLEET_TOKEN", status=status)
        if status == _NO_ADDRESS and not problem.message:
            raise NodeError("it is not ingero, or an older version", hint="update it", status=status)
        text = visible(problem.message)[:_MAX_ERROR_CHARACTERS] or f"HTTP status {status}"
        hint = visible(problem.hint)[:_MAX_ERROR_CHARACTERS]
        raise NodeError(text, hint=hint, is_final=status not in _BUSY, is_said=bool(problem.message), status=status)

    async def _problem_of(self, response: httpcore2.Response, number: int) -> _Error:
        """The message and hint of an error response; empty if it is not one of ingero's."""
        body = bytearray()
        async for piece in self._pieces(response, number):
            body += piece
            if len(body) > _MAX_ERROR_BYTES:
                return _Error()
        try:
            return msgspec.json.decode(bytes(body), type=_Refusal).error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _Error()


def _header(response: httpcore2.Response, name: bytes) -> str:
    """The value of a header that stands there once; "" where it does not, none that is known where it does twice."""
    return ", ".join(value.decode("latin-1") for key, value in response.headers if key.lower() == name)
