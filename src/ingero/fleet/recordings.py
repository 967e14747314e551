"""Fetches parts of the recordings of many nodes into files, and merges them into one recording like `merge`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode

from ingero.errors import IngeroError
from ingero.fleet.budget import Budget
from ingero.fleet.client import NodeClient
from ingero.fleet.clocks import Clock
from ingero.fleet.fan_out import FleetAnswer, Missing, Reach, ask_nodes
from ingero.fleet.merged_clocks import MergedClocks, merged_clocks
from ingero.fleet.node_lists import Node
from ingero.serve.recording_part import MEDIA_TYPE
from ingero.store.errors import StoreError
from ingero.store.merge import Merged, Progress, merge
from ingero.store.reader import open_reader
from ingero.store.records import NodeClock, Window

MAX_NODE_BYTES = 64 << 20
MAX_TOTAL_BYTES = 4 << 30  # on the disk
_AT_ONCE = 8  # nodes fetched concurrently; the answers are long: the network is the limit
_Span = Callable[[Node], Window]


class NothingFetchedError(IngeroError):
    """No node gave a part of its recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A node's part. clock: None if the node does not report it."""

    node: Node
    path: Path
    clock: Clock | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRecording:
    """The recordings merged into one file. clocks: of the nodes in it. missing: nodes without a part in it."""

    merged: Merged
    clocks: MergedClocks
    missing: tuple[Missing, ...]


def fetch_since(reach: Reach, folder: Path, since: str, *, most_bytes: int) -> FleetAnswer[Fetched]:
    """Fetch the last `since` ("90s"; "": all) of each node's recording, one file each below the folder."""
    return _fetched(reach, folder, lambda _: {"since": since}, most_bytes)


def fetch_span(reach: Reach, folder: Path, span: _Span, *, most_bytes: int) -> FleetAnswer[Fetched]:
    """Fetch what each node recorded in a time range. span: the range by the clock of a node."""

    def wanted(node: Node) -> dict[str, str]:
        window = span(node)
        return {"begin_ns": str(max(window.begin_ns, 0)), "end_ns": str(max(window.end_ns, 0))}

    return _fetched(reach, folder, wanted, most_bytes)


def _fetched(
    reach: Reach, folder: Path, wanted: Callable[[Node], Mapping[str, str]], most_bytes: int
) -> FleetAnswer[Fetched]:
    places = {node: folder / f"{number:05d}" for number, node in enumerate(reach.nodes)}

    async def ask(client: NodeClient) -> Fetched:
        node = client.node
        places[node].mkdir()
        path = places[node] / f"{node.host.replace(':', '-')}.db"  # its name, if the recording says none
        question = urlencode({**wanted(node), "most_bytes": str(most_bytes)})
        with path.open("w+b") as file:
            await client.fetch(f"/api/v2/recording?{question}", MEDIA_TYPE, file)
        return Fetched(node=node, path=path)

    budget = Budget(MAX_TOTAL_BYTES, most_bytes)
    return ask_nodes(reach, ask, at_once=_AT_ONCE, budget=budget)


def merge_parts(found: FleetAnswer[Fetched], output: Path, *, progress: Progress) -> FleetRecording:
    """Merge all parts into one recording. An invalid file does not affect the other nodes.

    Raises:
        NothingFetchedError: there is no part.
        NewFileError: `output` is there already or cannot be written.
    """
    parts = [replace(reply.answer, clock=reply.clock) for reply in found.answered]
    missing = list(found.missing)
    try:
        merged = _merged(parts, output, progress)
    except StoreError:
        bad = {part.node: reason for part in parts if (reason := _refusal(part))}
        missing += [
            Missing(node=node, reason=f"its recording cannot be used: {reason}") for node, reason in bad.items()
        ]
        parts = [part for part in parts if part.node not in bad]
        merged = _merged(parts, output, progress)
    with open_reader(output) as reader:
        return FleetRecording(merged=merged, clocks=merged_clocks(reader), missing=tuple(missing))


def _merged(parts: Sequence[Fetched], output: Path, progress: Progress) -> Merged:
    if not parts:
        raise NothingFetchedError("no node gave a part of its recording", hint="the reasons are listed above")
    reference = secrets.token_hex(8)
    clocks = {
        part.path: NodeClock(
            at_ns=part.clock.at_ns,
            offset_ns=part.clock.offset_ns,
            bound_ns=part.clock.bound_ns,
            reference=reference,
        )
        for part in parts
        if part.clock is not None and not part.clock.steps  # set meanwhile, it is another than the part was cut by
    }
    return merge([part.path for part in parts], output, clocks=clocks, progress=progress)


def _refusal(part: Fetched) -> str:
    """Why a file cannot be merged; "": it can."""
    alone = part.path.with_suffix(".alone")
    try:
        merge([part.path], alone)
    except StoreError as error:
        return str(error).replace(str(part.path), part.path.name)
    alone.unlink()
    return ""


def by_node_clock(window: Window, clock: Clock | None) -> Window:
    """A time range of our clock converted to a node's clock, widened by the error bound."""
    if clock is None:
        return window
    begin_ns = window.begin_ns + clock.offset_ns - clock.bound_ns
    return replace(window, begin_ns=begin_ns, end_ns=window.end_ns + clock.offset_ns + clock.bound_ns)
