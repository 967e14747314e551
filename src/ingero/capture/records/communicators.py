"""Rows of NCCL communicators: creation, ranks and end as the kernel reports them, and their collectives."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ingero.attach.kernel_side import KernelSide
from ingero.capture.loop.clocks import WallClock
from ingero.capture.processes.traced_processes import TracedProcesses
from ingero.capture.records.rows import Sink
from ingero.decode.splits import CommunicatorSplits, SplitMember
from ingero.discover.ranks import Membership
from ingero.events import CommunicatorKind
from ingero.ops import BY_ID, COMMUNICATOR_CALLS, CommunicatorRole
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


class _Latest(NamedTuple):
    """The latest collective of a communicator: its entry (wall clock), thread, operation and arguments; 0: none."""

    start_ns: int = 0
    tid: int = 0
    op: int = 0
    size_bytes: int = 0
    arg2: int = 0


_NONE = _Latest()


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
    last: _Latest = _NONE
    is_changed: bool = True


class CommunicatorRows:
    """Communicators of running traced processes, by number. on_ranks: gets ranks by process number."""

    def __init__(
        self,
        kernel: KernelSide,
        sink: Sink,
        clock: WallClock,
        traced_processes: TracedProcesses,
        on_ranks: Callable[[Mapping[int, Sequence[Membership]]], None] = lambda _: None,
    ) -> None:
        self._sink, self._clock, self._traced_processes, self._on_ranks = sink, clock, traced_processes, on_ranks
        self._map, self._peers = kernel.maps["communicators"], kernel.maps["peers"]
        self._layout = kernel.layouts.dtype("communicator")
        self._known: dict[int, _Communicator] = {}
        self._by_handle: dict[tuple[int, int], _Communicator] = {}
        self._splits = CommunicatorSplits()
        self._reported: dict[int, tuple[Membership, ...]] = {}

    def add(self, batch: np.ndarray[Any, Any]) -> None:
        """Takes records of communicators (`struct communicator_record`)."""
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
                self._known[number].last = self._latest(record)
                name, _ = _CALLS[int(record["call"])]
                self._end(self._known[number], self._clock.unix_ns_of(int(record["time_ns"])), name)

    def write(self) -> None:
        """Counts the collectives of each living communicator, and writes the rows that have changed."""
        for communicator in self._known.values():
            self._count(communicator)
            self._end_with_process(communicator)
        changed = [communicator for communicator in self._known.values() if communicator.is_changed]
        if changed:
            self._sink.append(tables.COMMUNICATORS, [_row(communicator) for communicator in changed])
            self._report_ranks({communicator.process for communicator in changed})
        for communicator in changed:
            communicator.is_changed = False
        # after ncclCommFinalize, and until ncclCommDestroy has returned, the handle is still this communicator's
        self._drop(
            [
                communicator
                for communicator in self._known.values()
                if communicator.ended_ns != _FOREVER_NS and self._entry(communicator) is None
            ]
        )

    def _report_ranks(self, processes: set[int]) -> None:
        """Reports the ranks of these processes in their communicators, oldest first, as far as known."""
        members: dict[int, list[Membership]] = {process: [] for process in processes}
        for communicator in self._known.values():
            if communicator.process in members and communicator.rank is not None and communicator.nranks is not None:
                place = Membership(comm_id_hash=communicator.hash, rank=communicator.rank, nranks=communicator.nranks)
                if place not in members[communicator.process]:
                    members[communicator.process].append(place)
        now = {process: tuple(places) for process, places in members.items()}
        new = {process: places for process, places in now.items() if self._reported.get(process) != places}
        self._reported |= new
        if new:
            self._on_ranks(new)

    def forget(self, slot: int) -> None:
        """Forgets an ended process's communicators, here and in the kernel."""
        mine = [communicator for communicator in self._known.values() if communicator.slot == slot]
        if not mine:
            return
        for communicator in mine:
            self._count(communicator)
            self._end_with_process(communicator)
            if self._entry(communicator) is not None:
                self._map.delete(_PARTS.pack(communicator.handle, slot))
        self._sink.append(tables.COMMUNICATORS, [_row(communicator) for communicator in mine])
        self._drop(mine)
        for communicator in mine:
            self._reported.pop(communicator.process, None)

    def _drop(self, ended: Sequence[_Communicator]) -> None:
        for communicator in ended:
            del self._known[communicator.number]
            if self._by_handle.get((communicator.slot, communicator.handle)) is communicator:
                del self._by_handle[communicator.slot, communicator.handle]
        numbers = {communicator.number for communicator in ended}
        for key in [key for key, _ in self._peers.items()] if numbers else ():
            if int.from_bytes(key, "little") >> _PEER_NUMBER_SHIFT in numbers:
                self._peers.delete(key)

    def _make(self, record: np.void) -> None:
        slot, handle = int(record["process_slot"]), int(record["handle"])
        traced_process = self._traced_processes.at(slot)
        if traced_process is None:
            return
        created_ns = self._clock.unix_ns_of(int(record["time_ns"]))
        parent = self._known.get(int(record["parent"]))
        is_made = record["kind"] == CommunicatorKind.MADE
        origin, role = _CALLS[int(record["call"])] if is_made else ("", None)
        made = _Communicator(
            process=traced_process.number,
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
            SplitMember(
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
    def _rank(communicator: _Communicator, rank: int | None, nranks: int | None) -> None:
        communicator.rank = communicator.rank if rank is None else rank
        communicator.nranks = communicator.nranks if nranks is None else nranks
        if communicator.rank is not None and communicator.nranks is not None and communicator.note == _SPLIT_NOTE:
            communicator.note = ""
        communicator.is_changed = True

    @staticmethod
    def _end(communicator: _Communicator, time_ns: int, call: str) -> None:
        if communicator.ended_ns == _FOREVER_NS:  # of finalize and destroy the first counts
            communicator.ended_ns, communicator.ended_by, communicator.is_changed = time_ns, call, True

    def _end_with_process(self, communicator: _Communicator) -> None:
        traced_process = self._traced_processes.at(communicator.slot)
        if traced_process and traced_process.exit_ns and traced_process.number == communicator.process:
            self._end(communicator, traced_process.exit_ns, "")

    def _count(self, communicator: _Communicator) -> None:
        entry = self._entry(communicator)
        if entry is not None and int(entry["collectives"]) != communicator.collectives:
            communicator.collectives, communicator.is_changed = int(entry["collectives"]), True
            communicator.last = self._latest(entry)

    def _latest(self, entry: np.void) -> _Latest:
        """The latest collective of a `struct communicator`, or of the record of its end."""
        if not entry["last_ns"]:
            return _NONE
        return _Latest(
            start_ns=self._clock.unix_ns_of(int(entry["last_ns"])),
            tid=int(entry["last_tid"]),
            op=BY_ID[int(entry["last_op"])].code,
            size_bytes=_signed(int(entry["last_bytes"])),
            arg2=_signed(int(entry["last_extra"])),
        )

    def _entry(self, communicator: _Communicator) -> np.void | None:
        """The kernel's entry of a communicator (`struct communicator`); None if its handle was reused."""
        raw = self._map.lookup(_PARTS.pack(communicator.handle, communicator.slot)) if communicator.handle else None
        entry: np.void | None = np.frombuffer(raw, self._layout)[0] if raw else None
        return entry if entry is not None and int(entry["number"]) == communicator.number else None


def _known(value: Any) -> int | None:
    return int(value) if value >= 0 else None


def _note_on(communicator: _Communicator, role: CommunicatorRole | None) -> str:
    """Why something about a new communicator is not known; empty if all is known."""
    if not communicator.origin:
        return _FOUND_NOTE
    if not communicator.handle:
        return _HANDLE_NOTE
    if role == CommunicatorRole.GROW:
        return _GROW_NOTE
    if communicator.hash is None:
        return _PARENT_NOTE
    return _SPLIT_NOTE if communicator.rank is None or communicator.nranks is None else ""


def _row(communicator: _Communicator) -> tables.Row:
    return tables.COMMUNICATORS.rows(
        1,
        process=communicator.process,
        number=communicator.number,
        handle=_signed(communicator.handle) or None,
        comm_id_hash=None if communicator.hash is None else _signed(communicator.hash),
        rank=communicator.rank,
        nranks=communicator.nranks,
        parent=communicator.parent,
        origin=communicator.origin,
        created_ns=communicator.created_ns,
        destroyed_ns=communicator.ended_ns,
        ended_by=communicator.ended_by,
        collectives=communicator.collectives,
        last_ns=communicator.last.start_ns,
        last_tid=communicator.last.tid,
        last_op=communicator.last.op,
        last_bytes=communicator.last.size_bytes,
        last_arg2=communicator.last.arg2,
        note=communicator.note,
    )[0]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
