"""Relay service of a node: it asks the nodes that its operator named, over TLS, with its own credentials.

It is the client of `fan_out` at work on a node: what a client may ask is checked, and what nodes answer is passed on
as it comes, piece by piece.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field

from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse

from ingero.errors import IngeroError
from ingero.fleet.access import Access
from ingero.fleet.budget import Budget
from ingero.fleet.client import JSON_TYPE, NodeClient, Question
from ingero.fleet.fan_out import Answered, Missing, Outcome, Reach, ask_each
from ingero.fleet.node_lists import Node
from ingero.fleet.recordings import MAX_NODE_BYTES, MAX_TOTAL_BYTES
from ingero.fleet.relay_frames import (
    MEDIA_TYPE,
    RELAY_PATH,
    RelayQuestion,
    end_of,
    failed,
    pieces_of,
    question_of,
    whole,
)
from ingero.fleet.relay_list import RelayList
from ingero.fleet.relays import via_of
from ingero.serve.recording_part import MEDIA_TYPE as PART_TYPE
from ingero.serve.recording_part import BusyError
from ingero.serve.structured.row_lines import MEDIA_TYPE as ROWS_TYPE

_MEDIA_TYPES = (JSON_TYPE, ROWS_TYPE, PART_TYPE)
_AT_ONCE = 2  # questions of one kind, of up to 64 connections each
_MAX_WAITING = 16  # questions, for their turn
_HELD = 16  # pieces of answers that the client has not taken yet
_OTHER = "its relay does not ask it: it is not in the list that the relay was given"
_HINT = "on the relay: ingero dashboard --relay NODES"

_log = logging.getLogger(__name__)


class RelayRefusalError(IngeroError):
    """The question is not passed on."""


@dataclass(slots=True, kw_only=True)
class RelayService:
    """The relay's nodes and credentials. Questions to nodes and to further relays have separate queues, so that they
    cannot wait for each other."""

    access: Access
    context: ssl.SSLContext
    allowed: RelayList
    _turns: dict[bool, asyncio.Semaphore] = field(default_factory=dict, init=False)
    _open: int = field(default=0, init=False)

    def add_to(self, app: FastAPI) -> None:
        """Add the relay's address to an application."""

        @app.post(RELAY_PATH, include_in_schema=False)  # frames, which no description of an API can say
        async def relay(request: Request) -> StreamingResponse:
            """What nodes answer, each in frames (fleet/relay_frames.py)."""
            asked = self.admitted(await request.body())
            if self._open >= _AT_ONCE + _MAX_WAITING:
                raise BusyError("it is asking nodes for many others", hint="ask again in a minute")
            return StreamingResponse(self.frames(asked), media_type=MEDIA_TYPE)

    def admitted(self, body: bytes) -> Admitted:
        """Check a client's question, whether it may be passed on.

        Raises:
            RelayRefusalError: a further relay is not one of those that may be asked.
            FrameError, ViaError: it is no such question.
        """
        asked = question_of(body)
        further = asked.further()
        other = next((relay for level in further[:1] for relay in level if not self.allowed.allows(relay)), None)
        if other is not None:
            raise RelayRefusalError(f"it does not ask {other} as a relay: it is not in its list", hint=_HINT)
        nodes = asked.asked()
        if any(question.media_type not in _MEDIA_TYPES for _, question in nodes):
            raise RelayRefusalError("nodes do not answer so", hint=f"{', '.join(_MEDIA_TYPES)} are passed on")
        if len(dict(nodes)) < len(nodes):
            raise RelayRefusalError("a node stands there twice", hint="name each once")
        if further:
            via_of(list(dict(nodes)), further)  # says what is wrong with them
        return Admitted(asked=asked, nodes=nodes, further=further)

    async def frames(self, admitted: Admitted) -> AsyncIterator[bytes]:
        """The answer as it comes. It is cancelled, with all its questions, when its reader goes."""
        self._open += 1
        held: asyncio.Queue[bytes] = asyncio.Queue(_HELD)
        running = asyncio.create_task(self._run(admitted, held))
        try:
            while frame := await held.get():
                yield frame
        finally:
            self._open -= 1
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def _run(self, admitted: Admitted, held: asyncio.Queue[bytes]) -> None:
        """Fill the queue, with b"" after the last frame."""
        try:
            async with self._turns.setdefault(bool(admitted.further), asyncio.Semaphore(_AT_ONCE)):
                await self._ask(admitted, held)
        except Exception as error:  # the client sees that it broke off, and which nodes are missing
            _log.warning("relaying: %s", error, exc_info=not isinstance(error, IngeroError))
        await held.put(b"")

    async def _ask(self, admitted: Admitted, held: asyncio.Queue[bytes]) -> None:
        number = {node: place for place, (node, _) in enumerate(admitted.nodes)}
        question = dict(admitted.nodes)

        async def ask(client: NodeClient) -> str:
            async def send(answer: bytes) -> None:
                for piece in pieces_of(number[client.node], answer):
                    await held.put(piece)

            await client.pass_on(question[client.node], send)
            return client.certificate_until

        async def done(one: Outcome[str]) -> None:
            if isinstance(one, Answered):
                await held.put(end_of(number[one.node], whole(one.answer, one.clock)))
            else:
                await held.put(end_of(number[one.node], failed(one.reason, one.hint, is_said=one.is_said)))

        others = [node for node in number if not admitted.further and not self.allowed.allows(node)]
        for node in others:
            await done(Missing(node=node, reason=_OTHER, hint=_HINT))
        nodes = tuple(node for node in number if node not in set(others))
        if nodes:
            await ask_each(
                self._reach(nodes, admitted), ask, done, at_once=admitted.asked.at_once, budget=_budget(admitted),
                random_part=random.Random(),
            )  # fmt: skip

    def _reach(self, nodes: tuple[Node, ...], admitted: Admitted) -> Reach:
        via = via_of(nodes, admitted.further) if admitted.further else None
        return Reach(nodes=nodes, access=self.access, context=self.context, timeout_s=admitted.asked.timeout_s, via=via)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A checked question. nodes: each with its question."""

    asked: RelayQuestion
    nodes: list[tuple[Node, Question]]
    further: tuple[tuple[Node, ...], ...]


def _budget(admitted: Admitted) -> Budget:
    """The budget as if the client asked directly: parts of recordings are larger."""
    is_of_parts = any(question.media_type == PART_TYPE for _, question in admitted.nodes)
    return Budget(MAX_TOTAL_BYTES, MAX_NODE_BYTES) if is_of_parts else Budget()
