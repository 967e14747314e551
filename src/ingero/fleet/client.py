"""A question to one node and its answer, which is bounded in size and checked, whichever way it comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

import msgspec

from ingero.errors import IngeroError
from ingero.fleet.clocks import Clock
from ingero.fleet.node_lists import Node
from ingero.serve.structured.row_lines import MEDIA_TYPE, Header, LineReader
from ingero.store.sql_text import Row

JSON_TYPE = "application/json"
PIECE_BYTES = 256 << 10  # of an answer that is passed on: many are smaller, and 64 of them are held at once
_MAX_JSON_BYTES = 8 << 20  # a diagnosis of many incidents has 1 MiB; as objects, hostile JSON takes some ten times that

_Decoded = TypeVar("_Decoded")
_Answer = TypeVar("_Answer")


class NodeError(IngeroError):
    """A node did not answer, or not with an answer.

    is_final: asking again brings nothing. is_said: the node itself says why. status: of HTTP, 0 without one.
    """

    def __init__(
        self, reason: str, *, hint: str = "", is_final: bool = True, is_said: bool = False, status: int = 0
    ) -> None:
        super().__init__(reason, hint=hint)
        self.is_final, self.is_said, self.status = is_final, is_said, status


@dataclass(frozen=True, slots=True)
class Question:
    """A GET request, or a POST request with a JSON body. media_type: of the answer."""

    path: str
    media_type: str
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRows:
    """A node's answer to a statement."""

    header: Header
    rows: list[Row]


class NodeClient(ABC):
    """One node, to be asked: over a connection of ours (`DirectClient`), or through a relay (`RelayedClient`).

    certificate_until: end of its certificate's validity, as in the certificate; "" if it was not checked.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.certificate_until = ""

    async def rows(self, sql: str, *, limit: int, timeout_s: float) -> NodeRows:
        """The answer to one SELECT, the maximum number of rows. timeout_s: what the statement may take on the node.

        Raises:
            NodeError: there is no answer.
        """
        body = msgspec.json.encode({"sql": sql, "limit": limit, "timeout_s": timeout_s})

        async def ask() -> NodeRows:
            reader = LineReader(most_rows=limit)
            async with self._asked(Question("/api/v2/query", MEDIA_TYPE, body)) as pieces:
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
            async with self._asked(Question(path, JSON_TYPE)) as pieces:
                async for piece in pieces:
                    body += piece
                    if len(body) > _MAX_JSON_BYTES:
                        raise NodeError(f"its answer is larger than {_MAX_JSON_BYTES >> 20} MiB")
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
            async with self._asked(Question(path, media_type)) as pieces:
                async for piece in pieces:
                    file.write(piece)

        await self._again(ask)

    async def pass_on(self, question: Question, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Pass the body of an answer on as it comes, unread. Once a piece was passed on, the question is not repeated.

        Raises:
            NodeError: there is no answer, or it broke off.
        """
        has_left = False

        async def ask() -> bytes:
            nonlocal has_left
            held = bytearray()
            async with self._asked(question) as pieces:
                async for piece in pieces:
                    held += piece
                    if len(held) >= PIECE_BYTES:
                        has_left = True
                        await send(bytes(held))
                        held.clear()
            return bytes(held)

        rest = await self._again(ask, may_repeat=lambda: not has_left)
        if rest:
            await send(rest)

    @abstractmethod
    def clock(self) -> Clock | None:
        """The node's clock relative to the asking host's; None: the node does not report its clock."""

    @abstractmethod
    def _asked(self, question: Question) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The body of a successful answer, in pieces."""

    @abstractmethod
    async def _again(
        self, ask: Callable[[], Awaitable[_Answer]], *, may_repeat: Callable[[], bool] = lambda: True
    ) -> _Answer:
        """Ask, and once more where that can help and is allowed. A question only reads, so it may arrive twice."""
