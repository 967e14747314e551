"""Bundles: the recordings of many nodes around an incident or a time, as one file to investigate."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from ingero.errors import IngeroError
from ingero.fleet.client import NodeClient
from ingero.fleet.clocks import Clock
from ingero.fleet.explanations import Explanation, ask_explanation, fleet_explanation
from ingero.fleet.fan_out import FleetAnswer, Missing, Reach, ask_nodes
from ingero.fleet.node_lists import Node, listed
from ingero.fleet.recordings import FleetRecording, by_node_clock, fetch_span, merge_parts
from ingero.store.merge import Progress
from ingero.store.records import Window

_Line = Annotated[str, msgspec.Meta(max_length=8 << 10)]
_Moment = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class BundleError(IngeroError):
    """There is no such incident to bundle around."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """An incident as a node reports it. Times: Unix ns by the node's clock; end_ns None: it is ongoing.

    node: "" where its recording has one.
    """

    number: int
    cause: _Line
    headline: _Line
    start_ns: _Moment
    end_ns: _Moment | None = None
    node: _Line = ""


class _Diagnosis(msgspec.Struct, frozen=True):
    incidents: Annotated[list[About], msgspec.Meta(max_length=10_000)] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Center:
    """The center of a bundle. window: by our clock, without a margin. label: name of the node with the incident.

    incident: None if the center is a time.
    """

    window: Window
    label: str = ""
    incident: About | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The bundle that was written. window: by our clock."""

    recording: FleetRecording
    window: Window


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes' answers before anything is fetched from them."""

    explained: Mapping[str, Explanation]
    clocks: Mapping[Node, Clock]
    node_of: Mapping[str, Node]
    missing: tuple[Missing, ...]


def ask_fleet(reach: Reach) -> Fleet:
    """Ask each node for its incidents and its clock."""

    async def ask(client: NodeClient) -> Explanation:
        return await ask_explanation(client, since="", pid=None, cause="")

    answer: FleetAnswer[Explanation] = ask_nodes(reach, ask)
    found = fleet_explanation(answer)
    return Fleet(
        explained={label: one.answer for label, one in found.explained.items()},
        clocks={reply.node: reply.clock for reply in answer.answered if reply.clock is not None},
        node_of={label: one.node for label, one in found.explained.items()},
        missing=found.missing,
    )


def center_of(fleet: Fleet, text: str, now_ns: int) -> Center | None:
    """The incident that `NODE` (its worst) or `NODE:NUMBER` names; None: the text names no node. now_ns: by our clock.

    Raises:
        BundleError: the node found no such incident.
    """
    label, number = text, ""
    if text not in fleet.explained:
        label, _, number = text.rpartition(":")
        if label not in fleet.explained or not number.isdecimal():
            return None
    incidents = _incidents(fleet.explained[label])
    chosen = [incident for incident in incidents if not number or incident.number == int(number)]
    if not chosen:
        numbers = listed(sorted(incident.number for incident in incidents))
        hint = f"{label}:N with one of {numbers}" if incidents else "give --around a time to take what there is"
        raise BundleError(f"{label} found no {'such ' if number else ''}incident", hint=hint)
    worst, clock = chosen[0], fleet.clocks.get(fleet.node_of[label])
    ahead_ns = clock.offset_ns if clock else 0
    begin_ns = worst.start_ns - ahead_ns
    end_ns = now_ns if worst.end_ns is None else worst.end_ns - ahead_ns
    return Center(window=Window(begin_ns=begin_ns, end_ns=max(end_ns, begin_ns + 1)), label=label, incident=worst)


def make_bundle(
    reach: Reach, fleet: Fleet, center: Center, output: Path, *, margin_ns: int, most_bytes: int, progress: Progress
) -> Bundle:
    """Fetch what each node recorded around the center, and write one recording without secrets in command lines.

    Raises:
        NothingFetchedError: no node gave a part.
        NewFileError: `output` is there already or cannot be written.
    """
    window = Window(begin_ns=center.window.begin_ns - margin_ns, end_ns=center.window.end_ns + margin_ns)
    with tempfile.TemporaryDirectory(prefix="ingero-bundle-") as folder:
        found = fetch_span(
            reach, Path(folder), lambda node: by_node_clock(window, fleet.clocks.get(node)), most_bytes=most_bytes
        )
        return Bundle(recording=merge_parts(found, output, progress=progress), window=window)


def labels(fleet: Fleet) -> Sequence[str]:
    """The names of the nodes that answered."""
    return sorted(fleet.explained)


def _incidents(explanation: Explanation) -> list[About]:
    try:
        return msgspec.json.decode(explanation.diagnosis, type=_Diagnosis).incidents
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BundleError("its diagnosis has an unexpected form", hint="update ingero on that node") from error
