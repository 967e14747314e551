"""Rows of NCCL communicators: made, ranked and ended as the kernel reports it, their collectives counted."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.attach.kernel_side import KernelSide
from ingero.capture.loop.clocks import WallClock
from ingero.capture.processes.traced_processes import Targets
from ingero.capture.records.rows import Sink
from ingero.decode.splits import Member, Splits
from ingero.discover.ranks import Membership
from ingero.events import CommunicatorKind
from ingero.ops import COMMUNICATOR_CALLS, CommunicatorRole
from ingero.store.writing import tables

_FOREVER_NS = (1 << 63) - 1
_PARTS = struct.Struct("<QQ")  # struct communicator_key
_PEER_NUMBER_SHIFT = 40  # bpf/nccl_calls.h: map `peers`
_CALLS = tuple(COMMUNICATOR_CALLS.items())

_FOUND_NOTE = "created before tracing began"
_SPLIT_NOTE = "split: not every rank of the parent was seen here"
_PARENT_NOTE = "its parent was created before tracing began"
_GROW_NOTE = "grown: no argument names it on all ranks"
_HANDLE_NOTE = "its handle was not set when the call returned"


@dataclass(slots=True, kw_only=True)
class _Communicator:
    """One communicator of one process; None: not known."""

    process: int
    slot: int
    number: int
    handle: int
    hash: int | None
    rank: int | None
    nranks: int | None
    parent: int | None
    origin: str
    created_ns: int
    note: str
    ended_ns: int = _FOREVER_NS
    ended_by: str = ""
    collectives: int = 0
    is_changed: bool = True


class CommunicatorRows:
    """All communicators of the running targets, by number. joined: is told the places of processes, by their number."""

    def __init__(
        self,
        kernel: KernelSide,
        sink: Sink,
        clock: WallClock,
        targets: Targets,
        joined: Callable[[Mapping[int, Sequence[Membership]]], None] = lambda _: None,
    ) -> None:
        self._sink, self._clock, self._targets, self._joined = sink, clock, targets, joined
        self._map, self._peers = kernel.maps["communicators"], kernel.maps["peers"]
        self._layout = kernel.layouts.dtype("communicator")
        self._known: dict[int, _Communicator] = {}
        self._by_handle: dict[tuple[int, int], _Communicator] = {}
        self._splits = Splits()
        self._told: dict[int, tuple[Membership, ...]] = {}

    def add(self, batch: np.ndarray[Any, Any]) -> None:
        """Takes what the kernel has seen (`struct communicator_record`)."""
        for record in batch:
            kind, number = int(record["kind"]), int(record["number"])
            if kind in (CommunicatorKind.MADE, CommunicatorKind.FOUND):
                self._make(record)
            elif kind == CommunicatorKind.LEFT:
                self._join_split(record, None)
            elif number in self._known and kind == CommunicatorKind.RANKED:
                self._rank(self._known[number], _known(record["rank"]), _known(record["nranks"]))
            elif number in self._known and kind == CommunicatorKind.ENDED:
                self._known[number].collectives = int(record["collectives"])
                name, _ = _CALLS[int(record["call"])]
                self._end(self._known[number], self._clock.unix_ns_of(int(record["time_ns"])), name)

    def write(self) -> None:
        """Counts the collectives of each living communicator, and writes the rows that have changed."""
        for one in self._known.values():
            self._count(one)
            self._end_with_process(one)
        changed = [one for one in self._known.values() if one.is_changed]
        if changed:
            self._sink.append(tables.COMMUNICATORS, [_row(one) for one in changed])
            self._tell({one.process for one in changed})
        for one in changed:
            one.is_changed = False
        # after ncclCommFinalize, and until ncclCommDestroy has returned, the handle is still this communicator's
        self._drop([one for one in self._known.values() if one.ended_ns != _FOREVER_NS and self._entry(one) is None])

    def _tell(self, processes: set[int]) -> None:
        """Says where in their communicators these processes are, oldest first, as far as that is known."""
        members: dict[int, list[Membership]] = {process: [] for process in processes}
        for one in self._known.values():
            if one.process in members and one.rank is not None and one.nranks is not None:
                place = Membership(comm_id_hash=one.hash, rank=one.rank, nranks=one.nranks)
                if place not in members[one.process]:
                    members[one.process].append(place)
        now = {process: tuple(places) for process, places in members.items()}
        new = {process: places for process, places in now.items() if self._told.get(process) != places}
        self._told |= new
        if new:
            self._joined(new)

    def forget(self, slot: int) -> None:
        """Forgets an ended process's communicators, here and in the kernel."""
        mine = [one for one in self._known.values() if one.slot == slot]
        if not mine:
            return
        for one in mine:
            self._count(one)
            self._end_with_process(one)
            if self._entry(one) is not None:
                self._map.delete(_PARTS.pack(one.handle, slot))
        self._sink.append(tables.COMMUNICATORS, [_row(one) for one in mine])
        self._drop(mine)
        for one in mine:
            self._told.pop(one.process, None)

    def _drop(self, ended: Sequence[_Communicator]) -> None:
        for one in ended:
            del self._known[one.number]
            if self._by_handle.get((one.slot, one.handle)) is one:
                del self._by_handle[one.slot, one.handle]
        numbers = {one.number for one in ended}
        for key in [key for key, _ in self._peers.items()] if numbers else ():
            if int.from_bytes(key, "little") >> _PEER_NUMBER_SHIFT in numbers:
                self._peers.delete(key)

    def _make(self, record: np.void) -> None:
        slot, handle = int(record["process_slot"]), int(record["handle"])
        target = self._targets.at(slot)
        if target is None:
            return
        created_ns = self._clock.unix_ns_of(int(record["time_ns"]))
        parent = self._known.get(int(record["parent"]))
        is_made = record["kind"] == CommunicatorKind.MADE
        origin, role = _CALLS[int(record["call"])] if is_made else ("", None)
        made = _Communicator(
            process=target.number,
            slot=slot,
            number=int(record["number"]),
            handle=handle,
            hash=int(record["hash"]) or None,
            rank=_known(record["rank"]),
            nranks=_known(record["nranks"]),
            parent=parent.number if parent else None,
            origin=origin,
            created_ns=created_ns,
            note="",
        )
        made.note = _note_on(made, role)
        before = self._by_handle.get((slot, handle)) if handle else None
        if before:
            self._end(before, created_ns, before.ended_by)
        self._known[made.number] = self._by_handle[slot, handle] = made
        if role == CommunicatorRole.SPLIT:
            self._join_split(record, made)

    def _join_split(self, record: np.void, made: _Communicator | None) -> None:
        parent = self._known.get(int(record["parent"]))
        if parent is None or parent.hash is None or parent.rank is None or parent.nranks is None:
            return
        places = self._splits.add(
            (parent.hash, int(record["nth_child"])),
            parent.nranks,
            Member(
                parent_rank=parent.rank,
                color=int(record["color"]),
                key=int(record["key"]),
                owner=(made.slot, made.number) if made else None,
            ),
        )
        for place in places:
            child = self._known.get(place.owner[1])
            if child:
                self._rank(child, place.rank, place.nranks)

    @staticmethod
    def _rank(one: _Communicator, rank: int | None, nranks: int | None) -> None:
        one.rank = one.rank if rank is None else rank
        one.nranks = one.nranks if nranks is None else nranks
        if one.rank is not None and one.nranks is not None and one.note == _SPLIT_NOTE:
            one.note = ""
        one.is_changed = True

    @staticmethod
    def _end(one: _Communicator, time_ns: int, call: str) -> None:
        if one.ended_ns == _FOREVER_NS:  # of finalize and destroy the first counts
            one.ended_ns, one.ended_by, one.is_changed = time_ns, call, True

    def _end_with_process(self, one: _Communicator) -> None:
        target = self._targets.at(one.slot)
        if target and target.exit_ns and target.number == one.process:
            self._end(one, target.exit_ns, "")

    def _count(self, one: _Communicator) -> None:
        entry = self._entry(one)
        if entry is not None and int(entry["collectives"]) != one.collectives:
            one.collectives, one.is_changed = int(entry["collectives"]), True

    def _entry(self, one: _Communicator) -> np.void | None:
        """The kernel's entry of a communicator (`struct communicator`); None if its handle is another's by now."""
        raw = self._map.lookup(_PARTS.pack(one.handle, one.slot)) if one.handle else None
        entry: np.void | None = np.frombuffer(raw, self._layout)[0] if raw else None
        return entry if entry is not None and int(entry["number"]) == one.number else None


def _known(value: Any) -> int | None:
    return int(value) if value >= 0 else None


def _note_on(one: _Communicator, role: CommunicatorRole | None) -> str:
    """Why something about a new communicator is not known; empty if all is."""
    if not one.origin:
        return _FOUND_NOTE
    if not one.handle:
        return _HANDLE_NOTE
    if role == CommunicatorRole.GROW:
        return _GROW_NOTE
    if one.hash is None:
        return _PARENT_NOTE
    return _SPLIT_NOTE if one.rank is None or one.nranks is None else ""


def _row(one: _Communicator) -> tables.Row:
    return tables.COMMUNICATORS.rows(
        1,
        process=one.process,
        number=one.number,
        handle=_signed(one.handle) or None,
        comm_id_hash=None if one.hash is None else _signed(one.hash),
        rank=one.rank,
        nranks=one.nranks,
        parent=one.parent,
        origin=one.origin,
        created_ns=one.created_ns,
        destroyed_ns=one.ended_ns,
        ended_by=one.ended_by,
        collectives=one.collectives,
        note=one.note,
    )[0]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
