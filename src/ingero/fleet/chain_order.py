"""Orders the chains of many nodes by time on our clock, as far as the bounds of the clocks prove the order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingero.fleet.clocks import Clock
from ingero.fleet.explanations import Chain, Explanation, FleetExplanation
from ingero.fleet.known_order import are_in_order
from ingero.fleet.node_lists import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A chain and when it began: Unix ns by our clock, within bound_ns.

    is_known: whether it is known to have begun after all chains before it; on one host that needs no bound.
    """

    node: str
    chain: Chain
    start_ns: int
    bound_ns: int
    is_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlaced:
    """A chain whose time is not known here. reason: why."""

    node: str
    chain: Chain
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InOrder:
    """Chains in order of time. placed: earliest first."""

    placed: tuple[Placed, ...]
    not_placed: tuple[NotPlaced, ...]


@dataclass(frozen=True, slots=True)
class _Began:
    start_ns: int
    bound_ns: int
    machine: Node
    node: str
    chain: Chain


def in_order(found: FleetExplanation) -> InOrder:
    """Order the chains by when they began."""
    began: list[_Began] = []
    not_placed: list[NotPlaced] = []
    of = {label: (one.node, one.answer, one.clock) for label, one in found.explained.items()}
    for (node, chain), label in zip(found.chains, found.asked, strict=True):
        machine, answer, clock = of[label]
        when = _when(chain, answer, clock)
        if isinstance(when, str):
            not_placed.append(NotPlaced(node=node, chain=chain, reason=when))
        else:
            began.append(_Began(*when, machine, node, chain))
    began.sort(key=lambda one: one.start_ns)
    return InOrder(placed=tuple(_placed(began)), not_placed=tuple(not_placed))


def _when(chain: Chain, answer: Explanation, clock: Clock | None) -> tuple[int, int] | str:
    """When a chain began by our clock, with its bound; or why that is not known."""
    if clock is None or answer.clock is None:
        return "the node does not say what its clock is"
    if chain.mono_ns is None:
        return "it was recorded before that host's last boot, or on another host"
    start_ns = clock.ours(chain.mono_ns + answer.clock.unix_ns - answer.clock.mono_ns)
    return start_ns, clock.bound_at(start_ns) + chain.mono_bound_ns + answer.clock.suspended_ns


def _placed(began: Sequence[_Began]) -> Iterator[Placed]:
    known = are_in_order((one.start_ns, one.bound_ns, one.machine) for one in began)
    for one, is_known in zip(began, known, strict=True):
        yield Placed(node=one.node, chain=one.chain, start_ns=one.start_ns, bound_ns=one.bound_ns, is_known=is_known)
