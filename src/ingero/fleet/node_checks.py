"""Checks whether nodes answer and record, and what must be fixed soon: certificates, clocks, versions."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated

import msgspec

from ingero.fleet.client import NodeClient, NodeError
from ingero.fleet.clocks import Clock, warnings
from ingero.fleet.fan_out import FleetAnswer, Missing
from ingero.fleet.names import names_of
from ingero.fleet.node_lists import Node, listed
from ingero.foreign_text import visible
from ingero.program import command
from ingero.serve.structured.row_lines import Identity

_WARN_DAYS = 14  # before a certificate expires it is reported as a problem
_DAY_S = 86_400

_Word = Annotated[str, msgspec.Meta(max_length=256)]


class _Health(msgspec.Struct, frozen=True):
    version: _Word
    is_live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node's state as it reports it. who: None without a recording; error then says why, and version is "".

    certificate_until: Unix s; None if it was not checked.
    """

    who: Identity | None
    version: str
    is_recording: bool
    error: str
    certificate_until: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A node that answered. problems: what must be fixed, one sentence each."""

    name: str
    node: Node
    state: NodeState
    clock: Clock | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCheck:
    """The checks of all nodes. nodes: in the order in which they were given."""

    nodes: tuple[Checked, ...]
    missing: tuple[Missing, ...]
    notes: tuple[str, ...]


async def ask_state(client: NodeClient) -> NodeState:
    """Ask a node for its state.

    Raises:
        NodeError: it does not answer, or is none. That it cannot read its recording is an answer.
    """
    who, health, error = None, _Health("", is_live=False), ""
    try:
        health = await client.json("/api/v1/health", _Health)
        who = await client.json("/api/v2/node", Identity)
    except NodeError as refused:
        if not refused.is_said:
            raise
        error = str(refused)
    until = client.certificate_until
    return NodeState(
        who=who,
        version=visible(health.version),
        is_recording=health.is_live,
        error=error,
        certificate_until=ssl.cert_time_to_seconds(until) if until else None,
    )


def fleet_check(found: FleetAnswer[NodeState], *, skew_ns: int, now: datetime) -> FleetCheck:
    """Combine the states of all nodes. skew_ns: clocks that are off by more are a problem."""
    names = names_of([(reply.node, reply.answer.who) for reply in found.answered if reply.answer.who is not None])
    repeated = {one.node for one in names.repeated}
    label = {reply.node: names.label.get(reply.node, str(reply.node)) for reply in found.answered}
    clocks = {label[reply.node]: reply.clock for reply in found.answered if reply.clock is not None}
    checked = tuple(
        Checked(
            name=label[reply.node],
            node=reply.node,
            state=reply.answer,
            clock=reply.clock,
            problems=tuple(_problems(reply.answer, now)),
        )
        for reply in found.answered
        if reply.node not in repeated
    )
    notes = (*warnings(clocks, skew_ns), *names.notes, *_of_versions(checked))
    return FleetCheck(nodes=checked, missing=(*found.missing, *names.repeated), notes=notes)


def _problems(state: NodeState, now: datetime) -> Iterator[str]:
    if state.error:
        yield f"it has no recording that can be read: {state.error}"
    elif not state.is_recording:
        yield "it does not record: on the node, run `ingero trace` as root"
    if state.certificate_until is not None and state.certificate_until - now.timestamp() < _WARN_DAYS * _DAY_S:
        until = datetime.fromtimestamp(state.certificate_until, timezone.utc)
        again = command("certs", "node", "NAME", "--force")
        yield f"its certificate ends on {until:%Y-%m-%d}: {again}, and copy it there"


def _of_versions(checked: Sequence[Checked]) -> Iterator[str]:
    """The nodes of each version, most frequent first, if there are several versions."""
    by_version: dict[str, list[str]] = {}
    for one in checked:
        if one.state.version:
            by_version.setdefault(one.state.version, []).append(one.name)
    if len(by_version) > 1:
        parts = sorted(by_version.items(), key=lambda each: -len(each[1]))
        yield "versions differ: " + "; ".join(f"{version} on {listed(nodes, most=8)}" for version, nodes in parts)
