"""Asks nodes through relays, which are nodes that ask others: the division of nodes, and one relay with its share.

A relay is asked once for all of its nodes: as soon as each of them waits for an answer, or has all it needs.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn, TypeAlias, TypeVar

from ingero.errors import IngeroError
from ingero.fleet.budget import Budget
from ingero.fleet.client import NodeClient, NodeError, Question
from ingero.fleet.clocks import Clock
from ingero.fleet.connection import FAILURES
from ingero.fleet.direct_client import MAX_CLOCK_S, DirectClient
from ingero.fleet.node_lists import Node
from ingero.fleet.reasons import reason_of
from ingero.fleet.relay_frames import (
    AT_ONCE,
    MAX_LEVELS,
    MAX_NODES,
    MEDIA_TYPE,
    RELAY_PATH,
    Failed,
    FrameError,
    FrameReader,
    Whole,
    question_for,
)
from ingero.foreign_text import visible
from ingero.units import format_ns

_BESIDE_ANSWERS_BYTES = 64 << 10  # lines, for each node
_PIECES = 4  # pieces of a node that have arrived but are not taken yet
_NO_RELAY = (404, 405)
_TURN_ON = "on it: ingero dashboard --relay NODES ..."

_Answer = TypeVar("_Answer")
_Listed = TypeVar("_Listed")
_log = logging.getLogger(__name__)


class ViaError(IngeroError):
    """Nodes cannot be asked through these relays."""


class RelayError(NodeError):
    """The relay of a node failed; of the node itself nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The nodes that one relay is to ask, through further ones where there are any, by level."""

    relay: Node
    nodes: tuple[Node, ...]
    further: tuple[tuple[Node, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Via:
    """The relays with their shares of nodes. retries_directly: nodes whose relay fails are asked without it."""

    shares: tuple[Share, ...]
    retries_directly: bool = False

    @property
    def relays(self) -> tuple[Node, ...]:
        """The relays that are asked from here."""
        return tuple(share.relay for share in self.shares)


def via_of(nodes: Sequence[Node], levels: Sequence[Sequence[Node]], *, retries_directly: bool = False) -> Via:
    """Divide the nodes evenly, in order. levels: relays by level, those asked from here first.

    Raises:
        ViaError: they would ask in circles, or are too few or too deep.
    """
    if len(levels) > MAX_LEVELS:
        raise ViaError(
            f"{len(levels)} levels of relays", hint=f"{MAX_LEVELS} with 64 relays each reach more nodes than there are"
        )
    every = [relay for level in levels for relay in level]
    again = next((relay for relay in every if every.count(relay) > 1), None) if len(levels) > 1 else None
    if again is not None:
        raise ViaError(f"{again} is a relay of two levels", hint="name it in one --via: questions go through it once")
    if any(len(below) < len(above) for above, below in itertools.pairwise(levels)):
        raise ViaError("a level has fewer relays than the one before it", hint="the second --via is asked by the first")
    first, *further = levels
    below = [_split(level, len(first)) for level in further]
    shares = (
        Share(relay=relay, nodes=mine, further=tuple(level[place] for level in below))
        for place, (relay, mine) in enumerate(zip(first, _split(nodes, len(first)), strict=True))
    )
    return Via(shares=tuple(shares), retries_directly=retries_directly)


def _split(items: Sequence[_Listed], parts: int) -> list[tuple[_Listed, ...]]:
    """Split items evenly; neighbors stay together, because they are often in one rack."""
    return [tuple(items[len(items) * part // parts : len(items) * (part + 1) // parts]) for part in range(parts)]


def longest_s(nodes: int, further: Sequence[int], *, timeout_s: float, at_once: int) -> float:
    """Time limit of a relay: as long as its nodes would take if each used up its time, and once more for itself.

    further: how many relays it has for them, by level.
    """
    if not further:
        return (math.ceil(nodes / at_once) + 1) * timeout_s
    most = math.ceil(nodes / further[0])
    turns = math.ceil(further[0] / AT_ONCE)
    return turns * longest_s(most, further[1:], timeout_s=timeout_s, at_once=at_once) + timeout_s


_Item: TypeAlias = "bytes | Whole | NodeError"


class _Coming:
    """One node's incoming answer: pieces, then how it ended."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[_Item] = asyncio.Queue(_PIECES)
        self._is_left = False

    async def put(self, item: _Item) -> None:
        """Add the next piece; waits while earlier ones are not taken. It is dropped once the reader has left."""
        if not self._is_left:
            await self._items.put(item)

    async def take(self) -> _Item:
        """The next piece."""
        return await self._items.get()

    def leave(self) -> None:
        """Drop what still comes."""
        self._is_left = True
        while not self._items.empty():
            self._items.get_nowait()


class Relay:
    """One relay with its number of nodes. `run` has to be running; a node that needs nothing more calls `leave`."""

    def __init__(
        self,
        client: DirectClient,
        share: Share,
        *,
        nodes: int,
        timeout_s: float,
        at_once: int,
    ) -> None:
        self.node = share.relay
        self._client, self._further = client, share.further
        self._timeout_s, self._at_once = timeout_s, at_once
        self._nodes = nodes  # that have not left
        self._waiting: list[tuple[Node, Question, _Coming]] = []
        self._all_wait, self._is_idle = asyncio.Event(), asyncio.Event()
        self._is_idle.set()

    def ask(self, node: Node, question: Question) -> _Coming:
        """Ask a node; its incoming answer."""
        coming = _Coming()
        self._waiting.append((node, question, coming))
        self._look()
        return coming

    def leave(self) -> None:
        """A node needs nothing more."""
        self._nodes -= 1
        self._look()

    def _look(self) -> None:
        if self._waiting and len(self._waiting) == self._nodes:
            self._is_idle.clear()
            self._all_wait.set()

    async def run(self) -> NoReturn:
        """Ask whenever all nodes wait, until cancelled."""
        while True:
            await self._all_wait.wait()
            self._all_wait.clear()
            waiting, self._waiting = self._waiting, []
            for at in range(0, len(waiting), MAX_NODES):
                await self._ask(waiting[at : at + MAX_NODES])
            if not self._all_wait.is_set():
                self._is_idle.set()

    async def clock(self) -> Clock | None:
        """The relay's clock, if it was not set while nodes were asked."""
        try:
            await asyncio.wait_for(self._is_idle.wait(), min(MAX_CLOCK_S, self._timeout_s / 2))
        except (TimeoutError, asyncio.TimeoutError):  # two classes until Python 3.11
            return None
        await self._client.compare_clocks(within_s=self._timeout_s)
        return self._client.clock_throughout()

    async def _ask(self, asked: Sequence[tuple[Node, Question, _Coming]]) -> None:
        """Ask one question for many nodes; each of them learns how its own ended, whatever happens."""
        coming = {place: one for place, (_, _, one) in enumerate(asked)}
        body = question_for(
            [(node, question) for node, question, _ in asked],
            self._further,
            timeout_s=self._timeout_s,
            at_once=self._at_once,
        )
        limit_s = longest_s(
            len(asked), [len(level) for level in self._further], timeout_s=self._timeout_s, at_once=self._at_once
        )
        try:
            await asyncio.wait_for(self._read(body, coming), limit_s)
        except (TimeoutError, asyncio.TimeoutError):  # two classes until Python 3.11
            failure = self._failed(f"it did not answer within {format_ns(limit_s * 1e9)}")
        except FAILURES as error:
            failure = self._failed(reason_of(error))
        except NodeError as error:
            failure = self._failed("it does not relay", _TURN_ON) if error.status in _NO_RELAY else self._of(error)
        except IngeroError as error:
            failure = self._of(error)
        except Exception as error:  # it costs the nodes of other relays nothing, whatever it made of us
            _log.warning("relay %s: %s", self.node, type(error).__name__, exc_info=True)
            failure = self._failed(f"unexpected: {type(error).__name__}")
        else:
            failure = self._failed("its answer broke off")
        for one in coming.values():
            await one.put(RelayError(str(failure), hint=failure.hint))  # each raises its own

    async def _read(self, body: bytes, coming: dict[int, _Coming]) -> None:
        """Hand each frame to its node until the answer ends; nodes that have ended are removed."""
        reader = FrameReader()
        async with AsyncExitStack() as until:
            async for data in await self._opened(body, until):
                for frame, piece in reader.feed(data):
                    if frame.node not in coming:
                        raise FrameError("it answers for a node that it was not asked for, or twice", hint="update it")
                    if frame.whole is None and frame.failed is None:
                        await coming[frame.node].put(piece)
                    else:
                        await coming.pop(frame.node).put(frame.whole or _node_error(frame.failed))

    async def _opened(self, body: bytes, until: AsyncExitStack) -> AsyncIterator[bytes]:
        """The relay's answer: it begins at once, however long its nodes take."""
        question = Question(RELAY_PATH, MEDIA_TYPE, body)
        try:
            return await asyncio.wait_for(self._client.answer(question, until), self._timeout_s)
        except (TimeoutError, asyncio.TimeoutError) as error:  # two classes until Python 3.11
            raise NodeError(f"it did not answer within {format_ns(self._timeout_s * 1e9)}") from error

    def _of(self, error: IngeroError) -> RelayError:
        return self._failed(str(error), error.hint)

    def _failed(self, reason: str, hint: str = "") -> RelayError:
        return RelayError(f"its relay {self.node}: {reason}", hint=hint)


def _node_error(failed: Failed | None) -> NodeError:
    """The error of a node, or of a relay behind this one."""
    failed = failed or Failed(reason="unexpected")
    return NodeError(visible(failed.reason), hint=visible(failed.hint), is_said=failed.is_said)


class RelayedClient(NodeClient):
    """Client of a node behind a relay; a context manager, so that the relay knows how many nodes are still in use."""

    def __init__(self, node: Node, relay: Relay, budget: Budget) -> None:
        super().__init__(node)
        self._relay, self._budget = relay, budget
        self._clock: Clock | None = None

    async def __aenter__(self) -> RelayedClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._relay.leave()

    def clock(self) -> Clock | None:
        """The node's clock, relative to the relay's."""
        return self._clock

    async def _again(
        self,
        ask: Callable[[], Awaitable[_Answer]],
        *,
        may_repeat: Callable[[], bool] = lambda: True,  # noqa: ARG002  # the relay has tried again where that could help
    ) -> _Answer:
        return await ask()

    @asynccontextmanager
    async def _asked(self, question: Question) -> AsyncIterator[AsyncIterator[bytes]]:
        coming = self._relay.ask(self.node, question)
        number, is_whole = self._budget.begin(), False
        try:
            yield self._pieces(coming, number)
            is_whole = True
        finally:
            self._budget.end(number, is_kept=is_whole)
            coming.leave()

    async def _pieces(self, coming: _Coming, number: int) -> AsyncIterator[bytes]:
        while True:
            item = await coming.take()
            if isinstance(item, NodeError):
                raise item
            if isinstance(item, Whole):
                self.certificate_until, self._clock = item.certificate_until, item.by_relay()
                return
            self._budget.take(number, len(item))
            yield item


def relay_budget(nodes: int, budget: Budget) -> Budget:
    """The budget for a relay's answer: what its nodes might send themselves, and the lines around it."""
    most_bytes = nodes * (budget.max_node_bytes + _BESIDE_ANSWERS_BYTES)
    return Budget(most_bytes, most_bytes)
