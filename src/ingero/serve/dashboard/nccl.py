"""NCCL on the dashboard: exact totals by operation, and recorded calls by communicator with late ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.ops import OPS, Flag, Source
from ingero.serve.dashboard.state import State
from ingero.store.reader import Reader
from ingero.store.records import OpTotals, Process, Window

Array = np.ndarray[Any, np.dtype[Any]]

_MAX_CALLS = 200_000  # newest recorded calls that are read
_NAMES = {op.code: op.name for op in OPS if op.source is Source.NCCL}
_TO_PEER = [op.code for op in OPS if op.source is Source.NCCL and op.flags & Flag.PEER_TO_PEER]
_GROUP = ("comm_id_hash", "process", "op")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTotal:
    """All calls of one operation in one process, exact; recorded: of them, those with a row of their own."""

    op: str
    process: int
    pid: int
    rank: int | None
    calls: int
    recorded: int
    errors: int | None
    bytes: int
    sum_ns: int
    p50_ns: float | None
    p99_ns: float | None
    max_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """How long after the first recorded rank a rank entered the same collectives.

    matched: collectives of which another rank's call is recorded, too. last: of them, those that it entered last.
    """

    matched: int
    last: int
    p50_ns: int
    p99_ns: int
    max_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatorOp:
    """The recorded calls of one operation by one rank of one communicator; communicator "": it is not known."""

    communicator: str
    op: str
    process: int
    pid: int
    rank: int | None
    ranks: int | None
    calls: int
    bytes: int
    failed: int
    p50_ns: int
    p99_ns: int
    lateness: Lateness | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nccl(State):
    """totals: of all calls. by_communicator: of the recorded ones, the newest of them where is_truncated."""

    totals: list[NcclTotal]
    by_communicator: list[CommunicatorOp]
    is_truncated: bool
    has_exact_totals: bool


def nccl(reader: Reader, window: Window, state: Mapping[str, Any]) -> Nccl:
    """The NCCL calls of a window; empty if none was traced."""
    people = {process.process: process for process in reader.processes()}
    totals = [_total(total, people) for total in reader.op_totals(window) if total.source == Source.NCCL]
    calls = None
    if totals and reader.is_recorded("raw_communicators"):
        calls = reader.nccl_calls(window, limit=_MAX_CALLS)
    return Nccl(
        **state,
        totals=totals,
        by_communicator=[] if calls is None else _by_communicator(calls, people),
        is_truncated=calls is not None and len(calls) == _MAX_CALLS,
        has_exact_totals=reader.has_exact_totals,
    )


def _total(totals: OpTotals, people: Mapping[int, Process]) -> NcclTotal:
    process = people.get(totals.process)
    return NcclTotal(
        op=totals.name,
        process=totals.process,
        pid=totals.pid,
        rank=process.rank if process else None,
        calls=totals.count,
        recorded=totals.recorded,
        errors=totals.errors,
        bytes=totals.bytes,
        sum_ns=totals.sum_ns,
        p50_ns=totals.p50_ns,
        p99_ns=totals.p99_ns,
        max_ns=totals.max_ns,
    )


def _by_communicator(calls: Array, people: Mapping[int, Process]) -> list[CommunicatorOp]:
    """Recorded calls by communicator and rank, most called operations first."""
    if not len(calls):
        return []
    late_ns, is_last = lateness(calls)
    _, groups = np.unique(calls[list(_GROUP)], return_inverse=True)
    found = [
        _one(calls[groups == number], late_ns[groups == number], is_last[groups == number], people)
        for number in range(int(groups.max()) + 1)
    ]
    return sorted(found, key=lambda one: (one.communicator, one.op, -1 if one.rank is None else one.rank, one.process))


def lateness(calls: Array) -> tuple[Array, Array]:
    """For each call, how long after the first rank's call of the same collective it began, and whether it came last.

    -1 where no other rank's call is recorded, and of sends and receives, which are counted per peer. Only calls of one
    session share a clock.
    """
    late_ns, is_last = np.full(len(calls), -1, np.int64), np.zeros(len(calls), bool)
    is_collective = ~np.isin(calls["op"], _TO_PEER)
    known = np.flatnonzero(is_collective & (calls["comm_id_hash"] != 0) & (calls["sequence"] != 0))
    same = calls[known][["session", "comm_id_hash", "sequence"]]
    _, groups, sizes = np.unique(same, return_inverse=True, return_counts=True)
    starts = calls["start_ns"][known]
    first, last = np.full(len(sizes), np.iinfo(np.int64).max), np.zeros(len(sizes), np.int64)
    np.minimum.at(first, groups, starts)
    np.maximum.at(last, groups, starts)
    is_shared = sizes[groups] > 1
    late_ns[known] = np.where(is_shared, starts - first[groups], -1)
    is_last[known] = is_shared & (starts == last[groups]) & (first < last)[groups]
    return late_ns, is_last


def _one(calls: Array, late_ns: Array, is_last: Array, people: Mapping[int, Process]) -> CommunicatorOp:
    comm_id, number, op = (int(calls[name][0]) for name in _GROUP)
    process = people.get(number)
    rank, ranks = int(calls["rank"][0]), int(calls["nranks"][0])
    durations = calls["duration_ns"]
    return CommunicatorOp(
        communicator=f"{comm_id & (2**64 - 1):#x}" if comm_id else "",
        op=_NAMES.get(op, str(op)),
        process=number,
        pid=process.pid if process else 0,
        rank=rank if rank >= 0 else None,
        ranks=ranks or None,
        calls=len(calls),
        bytes=int(calls["bytes"].sum()),
        failed=int((calls["ret_code"] != 0).sum()),
        p50_ns=int(np.quantile(durations, 0.5)),
        p99_ns=int(np.quantile(durations, 0.99)),
        lateness=_lateness(late_ns[late_ns >= 0], int(is_last.sum())),
    )


def _lateness(late_ns: Array, last: int) -> Lateness | None:
    if not len(late_ns):
        return None
    return Lateness(
        matched=len(late_ns),
        last=last,
        p50_ns=int(np.quantile(late_ns, 0.5)),
        p99_ns=int(np.quantile(late_ns, 0.99)),
        max_ns=int(late_ns.max()),
    )
