"""Asks many nodes the same question, some at a time: each has its own time limit and cannot hold up the others.

Through relays it is the same: a relay is asked once for all of its nodes, and asks them as this module does.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar

from ingero.errors import IngeroError
from ingero.fleet.access import Access
from ingero.fleet.budget import Budget
from ingero.fleet.client import NodeClient, NodeError
from ingero.fleet.clocks import Clock, through_relay
from ingero.fleet.direct_client import DirectClient
from ingero.fleet.node_lists import Node
from ingero.fleet.relay_frames import AT_ONCE
from ingero.fleet.relays import Relay, RelayedClient, RelayError, Share, Via, relay_budget
from ingero.units import format_ns

_LONGER = "give it longer with --timeout"

_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A node that did not answer. hint: what to do, if known. is_said: the node itself gave the reason.

    is_of_relay: its relay failed, and of the node itself nothing is known.
    """

    node: Node
    reason: str
    hint: str = ""
    is_said: bool = False
    is_of_relay: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Generic[_Answer]):
    """A node that answered. elapsed_ns: since its turn began. clock: None if it does not report its clock."""

    node: Node
    answer: _Answer
    elapsed_ns: int
    clock: Clock | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer(Generic[_Answer]):
    """All answers and all missing nodes, each in the order of the nodes."""

    answered: tuple[Answered[_Answer], ...]
    missing: tuple[Missing, ...]

    @property
    def is_partial(self) -> bool:
        """Whether nodes are missing."""
        return bool(self.missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Nodes and how to query them. timeout_s: for each, from its turn on. via: None: all directly from here."""

    nodes: tuple[Node, ...]
    access: Access
    context: ssl.SSLContext | None
    timeout_s: float
    via: Via | None = None


Outcome: TypeAlias = "Answered[_Answer] | Missing"
"""What became of one node."""

Ask: TypeAlias = "Callable[[NodeClient], Awaitable[_Answer]]"
"""What each node is asked."""


def ask_nodes(
    reach: Reach,
    ask: Ask[_Answer],
    *,
    at_once: int = AT_ONCE,
    seed: int | None = None,
    budget: Budget | None = None,
) -> FleetAnswer[_Answer]:
    """Ask all nodes; their answers. seed: for the random waits before retries.

    budget: how much all answers may be together; None: what fits into memory.
    """
    return _run(_ask_all(reach, ask, at_once=at_once, seed=seed, budget=budget or Budget()))


async def _ask_all(
    reach: Reach, ask: Ask[_Answer], *, at_once: int, seed: int | None, budget: Budget
) -> FleetAnswer[_Answer]:
    found: dict[Node, Outcome[_Answer]] = {}

    async def keep(one: Outcome[_Answer]) -> None:
        found[one.node] = one

    await ask_each(reach, ask, keep, at_once=at_once, budget=budget, random_part=random.Random(seed))
    in_order = [found[node] for node in reach.nodes]
    return FleetAnswer(
        answered=tuple(each for each in in_order if isinstance(each, Answered)),
        missing=tuple(each for each in in_order if isinstance(each, Missing)),
    )


async def ask_each(
    reach: Reach,
    ask: Ask[_Answer],
    done: Callable[[Outcome[_Answer]], Awaitable[None]],
    *,
    at_once: int,
    budget: Budget,
    random_part: random.Random,
) -> None:
    """Ask all nodes. done: called for each with its outcome; its turn lasts until that returns."""
    asking = _Asking(reach, ask, done, at_once=at_once, budget=budget, random_part=random_part)
    try:
        if reach.via is None:
            await asyncio.gather(*map(asking.directly, reach.nodes))
        else:
            wanted = set(reach.nodes)
            shares = [
                replace(share, nodes=mine)
                for share in reach.via.shares
                if (mine := tuple(node for node in share.nodes if node in wanted))
            ]
            await asyncio.gather(*map(asking.through, shares))
    finally:
        if reach.access.known is not None:
            reach.access.known.keep()


class _Asking(Generic[_Answer]):
    """Many nodes being asked, each directly or through its relay."""

    def __init__(
        self,
        reach: Reach,
        ask: Ask[_Answer],
        done: Callable[[Outcome[_Answer]], Awaitable[None]],
        *,
        at_once: int,
        budget: Budget,
        random_part: random.Random,
    ) -> None:
        self._reach, self._ask, self._done = reach, ask, done
        self._at_once, self._budget, self._random = at_once, budget, random_part
        self._turn, self._relay_turn = asyncio.Semaphore(at_once), asyncio.Semaphore(AT_ONCE)

    async def directly(self, node: Node) -> None:
        """Ask a node over a direct connection, when it is its turn."""
        async with self._turn:
            await self._done(await self._outcome(node, self._asked(node)))

    async def through(self, share: Share) -> None:
        """Ask the nodes of one relay. Their clocks are known once the relay's own has been compared at the end."""
        async with self._relay_turn, self._client(share.relay, relay_budget(len(share.nodes), self._budget)) as client:
            relay = Relay(client, share, nodes=len(share.nodes), timeout_s=self._reach.timeout_s, at_once=self._at_once)
            running = asyncio.create_task(relay.run())
            try:
                asked = (self._outcome(node, self._relayed(relay, node)) for node in share.nodes)
                outcomes = await asyncio.gather(*asked)
                clock = await relay.clock()
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running
        await asyncio.gather(*(self._end(outcome, clock) for outcome in outcomes))

    async def _end(self, outcome: Outcome[_Answer], relay: Clock | None) -> None:
        """The outcome of a node asked through its relay. relay: the relay's clock."""
        if isinstance(outcome, Answered):
            clock = through_relay(relay, outcome.clock) if relay is not None and outcome.clock is not None else None
            await self._done(replace(outcome, clock=clock))
        elif outcome.is_of_relay and self._reach.via is not None and self._reach.via.retries_directly:
            await self.directly(outcome.node)
        else:
            await self._done(outcome)

    async def _outcome(self, node: Node, asked: Awaitable[tuple[_Answer, Clock | None]]) -> Outcome[_Answer]:
        begin_ns = time.monotonic_ns()
        try:
            found, clock = await asked
        except (TimeoutError, asyncio.TimeoutError):  # two classes until Python 3.11
            limit = format_ns(self._reach.timeout_s * 1e9)
            return Missing(node=node, reason=f"it did not answer within {limit}", hint=_LONGER)
        except NodeError as error:
            is_of_relay = isinstance(error, RelayError)
            return Missing(
                node=node, reason=str(error), hint=error.hint, is_said=error.is_said, is_of_relay=is_of_relay
            )
        except IngeroError as error:
            return Missing(node=node, reason=str(error), hint=error.hint)
        except Exception as error:  # one node must not cost the others their answers, whatever it caused
            _log.warning("node %s: %s", node, type(error).__name__, exc_info=True)
            return Missing(node=node, reason=f"unexpected: {type(error).__name__}")
        return Answered(node=node, answer=found, elapsed_ns=time.monotonic_ns() - begin_ns, clock=clock)

    async def _asked(self, node: Node) -> tuple[_Answer, Clock | None]:
        until_s = time.monotonic() + self._reach.timeout_s
        async with self._client(node, self._budget) as client:
            answer = await asyncio.wait_for(self._ask(client), until_s - time.monotonic())
            await client.compare_clocks(within_s=until_s - time.monotonic())  # of no answer that is there already
            return answer, client.clock()

    async def _relayed(self, relay: Relay, node: Node) -> tuple[_Answer, Clock | None]:
        """An outcome from a relay, which keeps the node's time limit. The clock is relative to the relay's."""
        async with RelayedClient(node, relay, self._budget) as client:
            return await self._ask(client), client.clock()

    def _client(self, node: Node, budget: Budget) -> DirectClient:
        clock_s = self._reach.timeout_s / 2  # the other half is for the question, whatever a node says of its clock
        reach = self._reach
        return DirectClient(node, reach.access, reach.context, budget, random_part=self._random, clock_s=clock_s)


def _run(question: Coroutine[Any, Any, FleetAnswer[_Answer]]) -> FleetAnswer[_Answer]:
    """Run a coroutine to its end, also for a caller with an event loop of its own, which is blocked meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(question)
    with ThreadPoolExecutor(1, thread_name_prefix="fleet") as thread:
        return thread.submit(asyncio.run, question).result()
