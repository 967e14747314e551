"""Asks many nodes the same, some at a time: each has its own time limit, and none costs another its answer."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ingero.errors import IngeroError
from ingero.fleet.access import Access
from ingero.fleet.budget import Budget
from ingero.fleet.client import NodeClient
from ingero.fleet.clocks import Clock
from ingero.fleet.node_lists import Node
from ingero.units import format_ns

AT_ONCE = 64  # as ClusterShell; each takes a connection, a handshake and a thread for its name

_LONGER = "give it longer with --timeout"

_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A node that did not answer. hint: what to do, where that is known."""

    node: Node
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Generic[_Answer]):
    """A node that did. elapsed_ns: from the moment it was its turn. clock: None where it does not say what it is."""

    node: Node
    answer: _Answer
    elapsed_ns: int
    clock: Clock | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer(Generic[_Answer]):
    """Everything that was answered and what is missing of it, each in the order of the nodes."""

    answered: tuple[Answered[_Answer], ...]
    missing: tuple[Missing, ...]

    @property
    def is_partial(self) -> bool:
        """Whether nodes are missing."""
        return bool(self.missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Nodes, and how they are asked. timeout_s: for each, from when it is its turn."""

    nodes: tuple[Node, ...]
    access: Access
    context: ssl.SSLContext | None
    timeout_s: float


def ask_nodes(
    nodes: Sequence[Node],
    access: Access,
    context: ssl.SSLContext | None,
    ask: Callable[[NodeClient], Awaitable[_Answer]],
    *,
    timeout_s: float,
    at_once: int = AT_ONCE,
    seed: int | None = None,
    budget: Budget | None = None,
) -> FleetAnswer[_Answer]:
    """What each node answers. timeout_s: for each, from when it is its turn. seed: of the waits before retries.

    budget: how much all answers may be together; None: what fits into memory.
    """
    asked = _ask_all(
        nodes, access, context, ask, timeout_s=timeout_s, at_once=at_once, seed=seed, budget=budget or Budget()
    )
    return _run(asked)


async def _ask_all(
    nodes: Sequence[Node],
    access: Access,
    context: ssl.SSLContext | None,
    ask: Callable[[NodeClient], Awaitable[_Answer]],
    *,
    timeout_s: float,
    at_once: int,
    seed: int | None,
    budget: Budget,
) -> FleetAnswer[_Answer]:
    turn, random_part = asyncio.Semaphore(at_once), random.Random(seed)

    async def one(node: Node) -> Answered[_Answer] | Missing:
        async with turn:
            begin_ns = time.monotonic_ns()
            try:
                found, clock = await _asked(node, time.monotonic() + timeout_s)
            except (TimeoutError, asyncio.TimeoutError):  # two classes until Python 3.11
                return Missing(node=node, reason=f"it did not answer within {format_ns(timeout_s * 1e9)}", hint=_LONGER)
            except IngeroError as error:
                return Missing(node=node, reason=str(error), hint=error.hint)
            except Exception as error:  # one node costs nobody else the answer, whatever it made of us
                _log.warning("node %s: %s", node, type(error).__name__, exc_info=True)
                return Missing(node=node, reason=f"unexpected: {type(error).__name__}")
            return Answered(node=node, answer=found, elapsed_ns=time.monotonic_ns() - begin_ns, clock=clock)

    async def _asked(node: Node, until_s: float) -> tuple[_Answer, Clock | None]:
        clock_s = timeout_s / 2  # the other half is for the question, whatever the node says of its clock
        async with NodeClient(node, access, context, budget, random_part=random_part, clock_s=clock_s) as client:
            answer = await asyncio.wait_for(ask(client), until_s - time.monotonic())
            await client.compare_clocks(within_s=until_s - time.monotonic())  # of no answer that is there already
            return answer, client.clock()

    found = await asyncio.gather(*map(one, nodes))
    if access.known is not None:
        access.known.keep()
    return FleetAnswer(
        answered=tuple(each for each in found if isinstance(each, Answered)),
        missing=tuple(each for each in found if isinstance(each, Missing)),
    )


def _run(question: Coroutine[Any, Any, FleetAnswer[_Answer]]) -> FleetAnswer[_Answer]:
    """Runs it to its end, also for a caller that has a loop of its own, which it keeps waiting."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(question)
    with ThreadPoolExecutor(1, thread_name_prefix="fleet") as thread:
        return thread.submit(asyncio.run, question).result()
