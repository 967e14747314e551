"""Explanations of many nodes, each of its own recording: chains worst first, and headlines of nodes without chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec

from ingero.fleet.client import NodeClient
from ingero.fleet.clocks import Clock
from ingero.fleet.fan_out import Answered, FleetAnswer, Missing
from ingero.fleet.names import names_of
from ingero.serve.structured.row_lines import Identity

_MAX_CHAINS = 10_000
_SEVERITIES = ("CRITICAL", "HIGH", "MEDIUM", "LOW")

_Moment = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Line = Annotated[str, msgspec.Meta(max_length=8 << 10)]


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """One stall with its cause as a node reports it; texts are untrusted.

    cuda_op to timeline: as Ingero 0.8 to 0.17 publish them; in ours only the timeline is filled.
    mono_ns: when it began by CLOCK_MONOTONIC, to mono_bound_ns; None: not in this boot of that machine.
    """

    id: _Line
    severity: _Line
    summary: _Line
    root_cause: _Line
    explanation: _Line = ""
    recommendations: Annotated[list[_Line], msgspec.Meta(max_length=100)] = []
    cuda_op: _Line = ""
    cuda_p99_us: _Moment = 0
    cuda_p50_us: _Moment = 0
    tail_ratio: float = 0.0
    timeline: Annotated[list[Any], msgspec.Meta(max_length=1000)] = []
    detected_at: _Line = ""
    lost_ns: _Moment = 0
    mono_ns: _Moment | None = None
    mono_bound_ns: _Moment = 0
    node: _Line = ""


class NodeNow(msgspec.Struct, frozen=True, kw_only=True):
    """Both clocks of the node at one time (`serve/boot_clock`)."""

    mono_ns: _Moment
    unix_ns: _Moment
    suspended_ns: _Moment = 0


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A node's answer. diagnosis: as `explain --json` prints it, not checked."""

    node: Identity
    headline: _Line
    chains: Annotated[list[Chain], msgspec.Meta(max_length=_MAX_CHAINS)]
    diagnosis: msgspec.Raw
    clock: NodeNow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetExplanation:
    """chains: with the name of their node, worst first. asked: of each of them, who answered it. explained: by the name
    of who did, what."""

    chains: tuple[tuple[str, Chain], ...]
    asked: tuple[str, ...]
    explained: dict[str, Answered[Explanation]]
    missing: tuple[Missing, ...]
    notes: tuple[str, ...]

    @property
    def clocks(self) -> dict[str, Clock]:
        """The clocks of the nodes that report theirs."""
        return {label: one.clock for label, one in self.explained.items() if one.clock is not None}


async def ask_explanation(client: NodeClient, *, since: str, pid: int | None, cause: str) -> Explanation:
    """Ask a node what it found in the last `since`, about one process and of one cause, if given.

    Raises:
        NodeError: there is no answer.
    """
    wanted = {"since": since, "pid": pid, "cause": cause}
    question = urlencode({name: value for name, value in wanted.items() if value})
    return await client.json(f"/api/v2/explain?{question}", Explanation)


def fleet_explanation(found: FleetAnswer[Explanation]) -> FleetExplanation:
    """Combine the explanations of all nodes."""
    names = names_of([(reply.node, reply.answer.node) for reply in found.answered])
    explained = {names.label[reply.node]: reply for reply in found.answered if reply.node in names.label}
    every = [(label, chain) for label, one in explained.items() for chain in one.answer.chains]
    every.sort(key=lambda each: (_rank(each[1].severity), -each[1].lost_ns))
    return FleetExplanation(
        chains=tuple((_where(label, explained[label].answer, chain), chain) for label, chain in every),
        asked=tuple(label for label, _ in every),
        explained=explained,
        missing=(*found.missing, *names.repeated),
        notes=names.notes,
    )


def nodes_without_chains(found: FleetExplanation) -> dict[str, list[str]]:
    """Nodes without a chain, by their headline: that nothing was found, or that nothing could be checked."""
    nodes_by_headline: dict[str, list[str]] = {}
    for label, one in found.explained.items():
        if not one.answer.chains:
            nodes_by_headline.setdefault(one.answer.headline, []).append(label)
    return nodes_by_headline


def _where(label: str, answer: Explanation, chain: Chain) -> str:
    """The node of a chain; in a merged recording the chain names it."""
    own: Sequence[str] = answer.node.nodes
    return label if len(own) == 1 or chain.node not in own else chain.node


def _rank(severity: str) -> int:
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else len(_SEVERITIES)
