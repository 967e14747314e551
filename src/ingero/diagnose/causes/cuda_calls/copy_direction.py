"""Copies between host and GPU: bytes per direction, their speed, and the kind of host memory."""

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

LINK_FIX = Fix(text="check the PCIe link", command="nvidia-smi -q | grep -A9 'PCIe Generation'")
_MIN_SHARE_OF_BYTES = 0.5  # of the recorded bytes, before they have a direction
_EMPTY_COPY_NS = 20_000  # duration of a copy of nothing
_MIN_RATED_BYTES = 64 << 10  # the duration of smaller copies says more about the call than about the link
_MAX_BYTES_PER_NS = 100  # no link from host to GPU is faster: such a call did not wait for its bytes
_MAX_NS_PER_BYTE = 4.0  # 0.25 GB/s, without a rated copy: a copy that takes longer waits for something else
_DEVICE_TO_DEVICE = 3  # cudaMemcpyDeviceToDevice


class CopyDirection(enum.Enum):
    """The direction of a copy, in words."""

    TO_DEVICE = "from host to GPU"
    TO_HOST = "from GPU to host"
    UNKNOWN = ""


class Pageable(enum.Enum):
    """How it is known that the host memory is pageable; empty: it is not, or that is unknown."""

    TRACED = "traced allocations"
    BEHAVED = "the call's own behavior: it waited"
    NO = ""


_DIRECTION_BY_KIND = {1: CopyDirection.TO_DEVICE, 2: CopyDirection.TO_HOST}
_DIRECTION_BY_NAME = {
    "HtoD": CopyDirection.TO_DEVICE,
    "ToSymbol": CopyDirection.TO_DEVICE,
    "DtoH": CopyDirection.TO_HOST,
    "FromSymbol": CopyDirection.TO_HOST,
}
_PAGEABLE_BY_MEMORY = {HostMemory.PAGEABLE: Pageable.TRACED, HostMemory.SEEMS_PAGEABLE: Pageable.BEHAVED}


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedBytes:
    """What one call's copies moved between host and GPU, per sync interval. transfer_ns: time that the link needs."""

    direction: CopyDirection
    bytes: float
    transfer_ns: float


def copied_in_case(case: Case, copies: OpChange) -> CopiedBytes:
    """Bytes copied per sync interval of the case."""
    rows = _recorded_copies(case, copies, (case.window,))
    figures = copies.count, copies.size_bytes, copies.ns
    return _copied(case, copies, (case.window,), figures, rows, _paces(case, copies)[0])


def copied_in_baseline(case: Case, copies: OpChange) -> CopiedBytes:
    """Bytes copied per sync interval of the baseline; without a rated copy there, at the speed of the case."""
    rows = _recorded_copies(case, copies, case.baseline_windows)
    figures = copies.baseline_count, copies.baseline_bytes, copies.baseline_ns
    return _copied(case, copies, case.baseline_windows, figures, rows, _paces(case, copies)[1])


def _paces(case: Case, copies: OpChange) -> tuple[float, float]:
    """Nanoseconds per byte in the case and in the baseline; equal where either is only an upper bound.

    A slower link cannot be told from a slower GPU then, and both are taken to be as fast as the fastest copy.
    """
    now = _pace(copies, _recorded_copies(case, copies, (case.window,)), _MAX_NS_PER_BYTE)
    before = _pace(copies, _recorded_copies(case, copies, case.baseline_windows), now.ns_per_byte)
    if now.is_bound or before.is_bound:
        return (min(now.ns_per_byte, before.ns_per_byte),) * 2
    lone = lone_copies(case, copies, from_bytes=_MIN_RATED_BYTES)
    least = min(lone.ns_per_byte, _MAX_NS_PER_BYTE) if lone else 0.0
    return max(now.ns_per_byte, least), before.ns_per_byte


def slower_copy_ns(case: Case, copies: OpChange) -> float:
    """How much longer bytes took than in the baseline, over the whole case, in copies with nothing to wait for."""
    lone = lone_copies(case, copies, from_bytes=_MIN_RATED_BYTES)
    if not lone or not copies.baseline_ns:
        return 0.0
    now, before = _paces(case, copies)
    return max(min(now, lone.ns_per_byte) - before, 0.0) * lone.size_bytes


def _copied(
    case: Case,
    copies: OpChange,
    windows: Sequence[Window],
    figures: tuple[float, float, float],
    rows: Array,
    ns_per_byte: float,
) -> CopiedBytes:
    count, total_bytes, ns = figures
    host_copies = _host_copies(copies, rows)
    byte_share = _exact_host_share(case, copies, windows) or _share(
        np.maximum(host_copies["arg0"], 1), np.maximum(rows["arg0"], 1)
    )
    size_bytes = total_bytes * byte_share
    call_share = _share(np.ones(len(host_copies)), np.ones(len(rows)))
    link_ns = size_bytes * ns_per_byte + count * call_share * _EMPTY_COPY_NS
    return CopiedBytes(
        direction=_direction_of(copies, host_copies),
        bytes=size_bytes,
        transfer_ns=min(ns, link_ns) if size_bytes else 0.0,
    )


def _host_copies(copies: OpChange, rows: Array) -> Array:
    """Recorded copies between host and GPU, without those that stayed on a GPU."""
    copies_found: Array = rows[rows["arg2"] != _DEVICE_TO_DEVICE] if _has_copy_kind(copies) else rows
    return copies_found


def _recorded_copies(case: Case, copies: OpChange, windows: Sequence[Window]) -> Array:
    reader, key = case.evidence.reader, (copies.totals.source, copies.totals.op)
    rows = [
        reader.call_rows(window, sources=key[:1], process=case.process.process, ops={key})
        for window in windows or (Window(begin_ns=0, end_ns=0),)
    ]
    copies_found: Array = np.concatenate(rows)
    return copies_found


def _exact_host_share(case: Case, copies: OpChange, windows: Sequence[Window]) -> float:
    """Of the call's bytes, the share between host and GPU by exact sums (0-1); 0 where these do not tell."""
    key, process = (copies.totals.source, copies.totals.op), case.process.process
    shares = case.evidence.reader.copy_shares(windows, process=process) if windows else []
    moved = sum(
        share.host_to_gpu_bytes + share.gpu_to_host_bytes for share in shares if (share.source, share.op) == key
    )
    if not moved:
        return 0.0
    total = sum(totals.bytes for totals in case.evidence.ops(windows, process) if (totals.source, totals.op) == key)
    return min(moved / total, 1.0) if total else 0.0


def _share(part: Array, whole: Array) -> float:
    """part / whole of their sums; 1 where nothing was recorded."""
    return float(part.sum() / whole.sum()) if len(whole) else 1.0


def _has_copy_kind(copies: OpChange) -> bool:
    """Whether the call has a direction argument (cudaMemcpyKind)."""
    op = BY_CODE.get((Source(copies.totals.source), copies.totals.op))
    return op is not None and op.extra is not None


def _direction_of(copies: OpChange, host_copies: Array) -> CopyDirection:
    """The direction by the call's name, otherwise that of most bytes of its recorded calls."""
    named = next((direction for part, direction in _DIRECTION_BY_NAME.items() if part in copies.totals.name), None)
    if named or not _has_copy_kind(copies):
        return named or CopyDirection.UNKNOWN
    sizes = np.maximum(host_copies["arg0"], 1)
    for kind, direction in _DIRECTION_BY_KIND.items():
        if int(sizes[host_copies["arg2"] == kind].sum()) > _MIN_SHARE_OF_BYTES * int(sizes.sum()):
            return direction
    return CopyDirection.UNKNOWN


@dataclass(frozen=True, slots=True)
class _Pace:
    """Time per byte. is_bound: an upper bound, because the copies polled, for earlier work or while they copied.

    Or because no copy is rated: of many calls only slow ones are recorded, which may all be small copies that waited.
    """

    ns_per_byte: float
    is_bound: bool = False


def _pace(copies: OpChange, rows: Array, default_ns_per_byte: float) -> _Pace:
    """Pace of the direction and memory kind with the most bytes: the median, or the fastest if copies may have waited.

    In an asynchronous call from or to pageable memory the thread itself copies. Where it slept, it waited for earlier
    work, and its running time is the copy; where it polled, its running time holds both.
    """
    host_copies = _host_copies(copies, rows)
    sizes, copy_ns = host_copies["arg0"], np.maximum(host_copies["duration_ns"], 1)
    ran, slept = (host_copies["state_ns"][:, STATES.index(name)] for name in ("run", "sleep"))
    copies_itself = (
        np.isin(host_copies["arg1"], list(_PAGEABLE_BY_MEMORY)) & (ran > 0) & ("Async" in copies.totals.name)
    )
    copy_ns = np.where(copies_itself, ran, copy_ns)
    rated = (sizes >= _MIN_RATED_BYTES) & (sizes <= copy_ns * _MAX_BYTES_PER_NS)
    if not rated.any():
        return _Pace(default_ns_per_byte, is_bound=True)
    kinds = host_copies["arg2"] << 8 | host_copies["arg1"]
    most = max(np.unique(kinds[rated]).tolist(), key=lambda kind: int(sizes[rated & (kinds == kind)].sum()))
    of_main_kind = rated & (kinds == most)
    paces, has_slept = copy_ns[of_main_kind] / sizes[of_main_kind], (copies_itself & (slept > 0))[of_main_kind]
    if has_slept.any():
        return _Pace(min(float(np.median(paces[has_slept])), _MAX_NS_PER_BYTE))
    return _Pace(min(float(paces.min()), _MAX_NS_PER_BYTE), is_bound=bool(copies_itself[of_main_kind].all()))


def how_pageable(case: Case, copies: OpChange) -> Pageable:
    """Whether the host memory is pageable, by what most bytes of the recorded calls say, otherwise by behavior.

    Proof is a call that blocks although it need not, or a process traced from its start that has pinned nothing.
    """
    rows = _recorded_copies(case, copies, (case.window,))
    memory_kinds = [kind for kind in HostMemory if kind is not HostMemory.UNKNOWN and (rows["arg1"] == kind).any()]
    if memory_kinds:
        sizes = np.maximum(rows["arg0"], 1)
        return _PAGEABLE_BY_MEMORY.get(
            max(memory_kinds, key=lambda kind: int(sizes[rows["arg1"] == kind].sum())), Pageable.NO
        )
    if "Async" in copies.totals.name:
        return Pageable.BEHAVED
    evidence = case.evidence
    if evidence.why_unavailable(("allocations",)) or case.process.start_ns < evidence.window.begin_ns:
        return Pageable.NO
    pinned = memory_in_use.memory_levels(evidence, (MemoryKind.PINNED,))
    return Pageable.NO if bool((pinned["process"] == case.process.process).any()) else Pageable.TRACED
