"""Copies that block: which way the bytes went, and whether the memory of the host was pinned."""

from __future__ import annotations

import enum

import numpy as np

from ingero.diagnose import memory
from ingero.diagnose.cases import Case, OpChange
from ingero.ops import MemoryKind

_MOSTLY = 0.5  # of the recorded bytes, before they have a direction


class Way(enum.Enum):
    """Where bytes go, in words; the kinds of cudaMemcpyKind that say so (driver_types.h)."""

    TO_DEVICE = "from host to device"
    TO_HOST = "from device to host"
    UNKNOWN = ""


_KINDS = {1: Way.TO_DEVICE, 2: Way.TO_HOST}
_NAMES = {"HtoD": Way.TO_DEVICE, "ToSymbol": Way.TO_DEVICE, "DtoH": Way.TO_HOST, "FromSymbol": Way.TO_HOST}


def way_of(case: Case, copies: OpChange) -> Way:
    """By the name of the call, else by what most bytes of its recorded calls were copied as."""
    named = next((way for part, way in _NAMES.items() if part in copies.totals.name), None)
    if named:
        return named
    key = (copies.totals.source, copies.totals.op)
    rows = case.evidence.reader.call_rows(
        case.window, sources=(copies.totals.source,), process=case.process.process, ops={key}
    )
    sizes = np.maximum(rows["arg0"], 1)
    for kind, way in _KINDS.items():
        if len(rows) and int(sizes[rows["arg2"] == kind].sum()) > _MOSTLY * int(sizes.sum()):
            return way
    return Way.UNKNOWN


def is_pageable(case: Case, copies: OpChange) -> bool:
    """Whether the host's memory is proven not to be pinned.

    Proof is a call that blocks although it need not, or a process that was seen from its begin and has pinned nothing.
    """
    if "Async" in copies.totals.name:
        return True
    evidence = case.evidence
    if evidence.missing(("allocations",)) or case.process.start_ns < evidence.window.begin_ns:
        return False
    pinned = memory.levels(evidence, (MemoryKind.PINNED,))
    return not bool((pinned["process"] == case.process.process).any())
