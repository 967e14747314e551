"""Copies between host and GPU: how many bytes went which way, how fast, and from what kind of host memory."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case, OpChange
from ingero.diagnose.causes.cuda_calls.lone_copies import lone_copies
from ingero.diagnose.causes.gpu_memory import memory_in_use
from ingero.diagnose.findings import Fix
from ingero.events import STATES, HostMemory
from ingero.ops import BY_CODE, MemoryKind, Source
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

LINK = Fix(text="check the PCIe link", command="nvidia-smi -q | grep -A9 'PCIe Generation'")
_MOSTLY = 0.5  # of the recorded bytes, before they have a direction
_CALL_NS = 20_000  # that a copy of nothing takes
_RATED_BYTES = 64 << 10  # smaller copies tell more of the call than of the link
_FASTEST_BYTES_PER_NS = 100  # no link from host to GPU is faster: such a call did not wait for its bytes
_SLOWEST_NS_PER_BYTE = 4.0  # 0.25 GB/s, where no recorded copy tells: a copy that takes longer waits for something else
_INSIDE = 3  # cudaMemcpyKind of what stays on a GPU


class Way(enum.Enum):
    """Where bytes go, in words."""

    TO_DEVICE = "from host to GPU"
    TO_HOST = "from GPU to host"
    UNKNOWN = ""


class Pageable(enum.Enum):
    """How it is known that the host's memory is pageable; empty: it is not, or that is not known."""

    TRACED = "traced allocations"
    BEHAVED = "the call's own behavior: it waited"
    NO = ""


_KINDS = {1: Way.TO_DEVICE, 2: Way.TO_HOST}
_NAMES = {"HtoD": Way.TO_DEVICE, "ToSymbol": Way.TO_DEVICE, "DtoH": Way.TO_HOST, "FromSymbol": Way.TO_HOST}
_TOLD = {HostMemory.PAGEABLE: Pageable.TRACED, HostMemory.SEEMS_PAGEABLE: Pageable.BEHAVED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What copies by one call moved between host and GPU, per sync interval. transfer_ns: needed by the link."""

    way: Way
    bytes: float
    transfer_ns: float


def moved_in_case(case: Case, copies: OpChange) -> Moved:
    """Per sync interval of the case."""
    rows = _recorded(case, copies, (case.window,))
    figures = copies.count, copies.size_bytes, copies.ns
    return _moved(case, copies, (case.window,), figures, rows, _paces(case, copies)[0])


def moved_usually(case: Case, copies: OpChange) -> Moved:
    """Per sync interval of the reference; where no copy of it tells the link's speed, it was as fast as in the case."""
    rows = _recorded(case, copies, case.baselines)
    figures = copies.usual_count, copies.usual_bytes, copies.usual_ns
    return _moved(case, copies, case.baselines, figures, rows, _paces(case, copies)[1])


def _paces(case: Case, copies: OpChange) -> tuple[float, float]:
    """Nanoseconds a byte in the case and in the reference; equal where either is only known to be no more than that.

    A slower link cannot be told from a slower GPU then, and both are as fast as the fastest copy of all.
    """
    now = _pace(copies, _recorded(case, copies, (case.window,)), _SLOWEST_NS_PER_BYTE)
    before = _pace(copies, _recorded(case, copies, case.baselines), now.ns_per_byte)
    if now.is_bound or before.is_bound:
        return (min(now.ns_per_byte, before.ns_per_byte),) * 2
    alone = lone_copies(case, copies, from_bytes=_RATED_BYTES)
    least = min(alone.ns_per_byte, _SLOWEST_NS_PER_BYTE) if alone else 0.0
    return max(now.ns_per_byte, least), before.ns_per_byte


def slowed_ns(case: Case, copies: OpChange) -> float:
    """What bytes took longer than in the reference over the whole case, in copies that had nothing to wait for."""
    alone = lone_copies(case, copies, from_bytes=_RATED_BYTES)
    if not alone or not copies.usual_ns:
        return 0.0
    now, before = _paces(case, copies)
    return max(min(now, alone.ns_per_byte) - before, 0.0) * alone.size_bytes


def _moved(
    case: Case,
    copies: OpChange,
    windows: Sequence[Window],
    figures: tuple[float, float, float],
    rows: Array,
    ns_per_byte: float,
) -> Moved:
    count, of_all_bytes, ns = figures
    between = _between(copies, rows)
    of_bytes = _exact_share(case, copies, windows) or _share(
        np.maximum(between["arg0"], 1), np.maximum(rows["arg0"], 1)
    )
    size_bytes = of_all_bytes * of_bytes
    of_calls = _share(np.ones(len(between)), np.ones(len(rows)))
    link_ns = size_bytes * ns_per_byte + count * of_calls * _CALL_NS
    return Moved(way=_way(copies, between), bytes=size_bytes, transfer_ns=min(ns, link_ns) if size_bytes else 0.0)


def _between(copies: OpChange, rows: Array) -> Array:
    """Without the calls whose bytes stayed on a GPU."""
    found: Array = rows[rows["arg2"] != _INSIDE] if _has_kind(copies) else rows
    return found


def _recorded(case: Case, copies: OpChange, windows: Sequence[Window]) -> Array:
    reader, key = case.evidence.reader, (copies.totals.source, copies.totals.op)
    rows = [
        reader.call_rows(one, sources=key[:1], process=case.process.process, ops={key})
        for one in windows or (Window(begin_ns=0, end_ns=0),)
    ]
    found: Array = np.concatenate(rows)
    return found


def _exact_share(case: Case, copies: OpChange, windows: Sequence[Window]) -> float:
    """Of the call's bytes, those between host and GPU by the exact sums; 0 where these do not tell."""
    key, process = (copies.totals.source, copies.totals.op), case.process.process
    shares = case.evidence.reader.copy_shares(windows, process=process) if windows else []
    moved = sum(one.host_to_gpu_bytes + one.gpu_to_host_bytes for one in shares if (one.source, one.op) == key)
    if not moved:
        return 0.0
    total = sum(one.bytes for one in case.evidence.ops(windows, process) if (one.source, one.op) == key)
    return min(moved / total, 1.0) if total else 0.0


def _share(part: Array, whole: Array) -> float:
    """1 where nothing was recorded."""
    return float(part.sum() / whole.sum()) if len(whole) else 1.0


def _has_kind(copies: OpChange) -> bool:
    """Whether the call says which way its bytes go (cudaMemcpyKind)."""
    op = BY_CODE.get((Source(copies.totals.source), copies.totals.op))
    return op is not None and op.extra is not None


def _way(copies: OpChange, between: Array) -> Way:
    """By the name of the call, else by what most bytes of its recorded calls were copied as."""
    named = next((way for part, way in _NAMES.items() if part in copies.totals.name), None)
    if named or not _has_kind(copies):
        return named or Way.UNKNOWN
    sizes = np.maximum(between["arg0"], 1)
    for kind, way in _KINDS.items():
        if int(sizes[between["arg2"] == kind].sum()) > _MOSTLY * int(sizes.sum()):
            return way
    return Way.UNKNOWN


@dataclass(frozen=True, slots=True)
class _Pace:
    """is_bound: its copies have polled, for the work before them or while they copied."""

    ns_per_byte: float
    is_bound: bool = False


def _pace(copies: OpChange, rows: Array, otherwise: float) -> _Pace:
    """Of the copies of the way and memory that most bytes have: the usual one, or the fastest that may have waited.

    In an asynchronous call from or to pageable memory the thread copies while it runs. Where it slept, it waited for
    the work before it, and what it ran is what the bytes took; where it polled, both are in it.
    """
    between = _between(copies, rows)
    sizes, took = between["arg0"], np.maximum(between["duration_ns"], 1)
    ran, slept = (between["state_ns"][:, STATES.index(name)] for name in ("run", "sleep"))
    copies_itself = np.isin(between["arg1"], list(_TOLD)) & (ran > 0) & ("Async" in copies.totals.name)
    took = np.where(copies_itself, ran, took)
    rated = (sizes >= _RATED_BYTES) & (sizes <= took * _FASTEST_BYTES_PER_NS)
    if not rated.any():
        return _Pace(otherwise)
    kinds = between["arg2"] << 8 | between["arg1"]
    most = max(np.unique(kinds[rated]).tolist(), key=lambda kind: int(sizes[rated & (kinds == kind)].sum()))
    mine = rated & (kinds == most)
    paces, has_slept = took[mine] / sizes[mine], (copies_itself & (slept > 0))[mine]
    if has_slept.any():
        return _Pace(min(float(np.median(paces[has_slept])), _SLOWEST_NS_PER_BYTE))
    return _Pace(min(float(paces.min()), _SLOWEST_NS_PER_BYTE), is_bound=bool(copies_itself[mine].all()))


def pageable_by(case: Case, copies: OpChange) -> Pageable:
    """By what most bytes of the recorded calls say; else by what a call or its process has shown.

    Proof is a call that blocks although it need not, or a process that was seen from its begin and has pinned nothing.
    """
    rows = _recorded(case, copies, (case.window,))
    told = [kind for kind in HostMemory if kind is not HostMemory.UNKNOWN and (rows["arg1"] == kind).any()]
    if told:
        sizes = np.maximum(rows["arg0"], 1)
        return _TOLD.get(max(told, key=lambda kind: int(sizes[rows["arg1"] == kind].sum())), Pageable.NO)
    if "Async" in copies.totals.name:
        return Pageable.BEHAVED
    evidence = case.evidence
    if evidence.missing(("allocations",)) or case.process.start_ns < evidence.window.begin_ns:
        return Pageable.NO
    pinned = memory_in_use.levels(evidence, (MemoryKind.PINNED,))
    return Pageable.NO if bool((pinned["process"] == case.process.process).any()) else Pageable.TRACED
