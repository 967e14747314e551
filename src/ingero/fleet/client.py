"""One node asked over one kept connection: whatever it answers takes bounded room and time, and is checked."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import httpx2
import msgspec

from ingero import __version__
from ingero.errors import IngeroError
from ingero.fleet.access import Access
from ingero.fleet.budget import Budget
from ingero.fleet.clocks import Exchange
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
_OK, _FIRST_REDIRECT, _FIRST_ERROR, _UNKNOWN_TOKEN, _NO_ADDRESS = 200, 300, 400, 401, 404

_Decoded = TypeVar("_Decoded")
_Answer = TypeVar("_Answer")


class NodeError(IngeroError):
    """A node did not answer, or not with an answer. is_final: asking again brings nothing."""

    def __init__(self, reason: str, *, hint: str = "", is_final: bool = True) -> None:
        super().__init__(reason, hint=hint)
        self.is_final = is_final


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRows:
    """What a node answered to a statement."""

    header: Header
    rows: list[Row]


class _Stamps(msgspec.Struct, frozen=True):
    received_ns: int
    sent_ns: int


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    hint: str = ""


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error = _Error()


class NodeClient:
    """A context manager; what it asks, it asks over the same connection."""

    def __init__(
        self, node: Node, access: Access, context: ssl.SSLContext | None, budget: Budget, *, random_part: random.Random
    ) -> None:
        self.node = node
        self._has_tls, self._has_certificate = context is not None, access.client_cert is not None
        self._base = f"{'https' if context else 'http'}://{node.reached_at}"
        self._extensions = {"sni_hostname": node.host}  # what its certificate must be for
        self._headers = {"accept-encoding": "identity", "user-agent": f"ingero/{__version__}"}
        if access.token:
            self._headers["authorization"] = f"Bearer {access.token}"
        self._budget = budget
        self._random = random_part
        self._transport = httpx2.AsyncHTTPTransport(
            verify=context if context is not None else False, trust_env=False,
            limits=httpx2.Limits(max_connections=1, max_keepalive_connections=1),
        )  # fmt: skip

    async def __aenter__(self) -> NodeClient:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.aclose()

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
                raise NodeError("its answer is none: it is not what it should be") from error

        return await self._again(ask)

    async def exchange(self) -> Exchange:
        """One exchange of clocks.

        Raises:
            NodeError: there is no answer.
        """
        asked_ns = time.time_ns()
        stamps = await self.json("/api/v2/time", _Stamps)
        answered_ns = time.time_ns()
        return Exchange(
            asked_ns=asked_ns, received_ns=stamps.received_ns, sent_ns=stamps.sent_ns, answered_ns=answered_ns
        )

    async def _again(self, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Asks, and some moments later once more where that can help. A question only reads, so it may come twice."""
        for attempt in range(ATTEMPTS):
            try:
                return await ask()
            except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
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
        headers = self._headers | ({"content-type": "application/json"} if body else {})
        request = httpx2.Request(
            method, self._base + path, headers=headers, content=body or None, extensions=self._extensions
        )
        response = await self._transport.handle_async_request(request)
        number, is_whole = self._budget.begin(), False
        try:
            await self._refuse(response, number, media_type)
            yield self._pieces(response, number)
            is_whole = True
        finally:
            self._budget.end(number, is_kept=is_whole)
            await response.aclose()

    async def _pieces(self, response: httpx2.Response, number: int) -> AsyncIterator[bytes]:
        async for piece in response.aiter_raw():
            self._budget.take(number, len(piece))
            yield piece

    async def _refuse(self, response: httpx2.Response, number: int, media_type: str) -> None:
        """Raises NodeError unless it is an answer."""
        status = response.status_code
        if _FIRST_REDIRECT <= status < _FIRST_ERROR:
            raise NodeError("it sends elsewhere, which is not followed", hint="name the address that it means")
        if status == _OK:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != media_type or response.headers.get("content-encoding", "identity") != "identity":
                raise NodeError("it is no ingero: what answers there speaks of something else")
            return
        said = await self._said(response, number)
        if status == _UNKNOWN_TOKEN:
            raise NodeError("it wants a token that it knows", hint="--token-file FILE, or INGERO_FLEET_TOKEN")
        if status == _NO_ADDRESS and not said.message:
            raise NodeError("it is no ingero, or an older one", hint="update it")
        text = visible(said.message)[:_MOST_ERROR_CHARACTERS] or f"HTTP status {status}"
        raise NodeError(text, hint=visible(said.hint)[:_MOST_ERROR_CHARACTERS], is_final=status not in _BUSY)

    async def _said(self, response: httpx2.Response, number: int) -> _Error:
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
