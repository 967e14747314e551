"""Converts calls of a learning window for the step search, and its results back into calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.decode.steps import CALL_DTYPE, FoundSteps, StepMarker
from ingero.ops import OPS, Kind

Array = np.ndarray[Any, np.dtype[Any]]

_KIND_OF_OP = np.zeros(256, np.int64)
_HAS_STREAM = np.zeros(256, bool)
_IS_KERNEL_LAUNCH = np.zeros(256, bool)
for _op in OPS:
    _KIND_OF_OP[_op.id] = int(_op.kind)
    _HAS_STREAM[_op.id] = not _op.kind & (Kind.SYNC_DEVICE | Kind.SYNC_EVENT)
    _IS_KERNEL_LAUNCH[_op.id] = bool(_op.kind & Kind.LAUNCH) and not _op.kind & Kind.GRAPH

_MIN_REGULAR = 0.8  # of the gaps: one step in five may be followed by something else

# odd, so that each keeps all bits; of the fractions of the golden ratio, the square roots of 2 and 3
_MIX_FUNCTION, _MIX_CALLER, _MIX_OP = (
    np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0x6A09E667F3BCC909, 0xBB67AE8584CAA73B)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerCall:
    """How the kernel side recognizes a step marker. function: kernel of a launch, cudaMemcpyKind of a copy; 0: any.

    is_matched_by_kernel: a launch whose kernel no other launch of that thread has, from any caller: the driver's call
    inside it comes once a step, too.
    """

    op: int
    function: int
    caller: int
    tid: int
    is_matched_by_kernel: bool = False


def search_calls(records: Array) -> Array:
    """Converts `struct sequence_record` by return to CALL_DTYPE by start_ns. Graph launches are never given up."""
    records = records[np.argsort(records["start_ns"], kind="stable")]
    kinds = _KIND_OF_OP[records["op"]]
    calls = np.zeros(len(records), CALL_DTYPE)
    calls["start_ns"] = records["start_ns"]
    calls["end_ns"] = records["start_ns"] + records["duration_ns"]
    calls["key"] = keys(records)
    calls["tid"] = records["tid"]
    calls["stream"] = np.where(_HAS_STREAM[records["op"]], records["stream"].view(np.int64), -1)
    calls["is_enqueue"] = (kinds & int(Kind.ENQUEUE)) != 0
    calls["is_launch"] = _IS_KERNEL_LAUNCH[records["op"]]
    return calls


def keys(records: Array) -> Array:
    """Keys of calls: equal for the same operation, kernel (or copy direction) and caller."""
    function, caller, op = (records[name].astype(np.uint64) for name in ("function", "caller", "op"))
    mixed = (function * _MIX_FUNCTION) ^ (caller * _MIX_CALLER) ^ (op * _MIX_OP)
    found: Array = (mixed ^ mixed >> np.uint64(29)).view(np.int64)
    return found


def marker_call(records: Array, key: int, tid: int) -> MarkerCall:
    """The call that a marker's key stands for."""
    mine = records[records["tid"] == tid]
    found = mine[keys(mine) == key]
    op, function, caller = (int(found[name][0]) for name in ("op", "function", "caller"))
    alike = (mine["function"] == function) & _IS_KERNEL_LAUNCH[mine["op"]]
    is_filtered = bool(_IS_KERNEL_LAUNCH[op]) and function != 0 and int(alike.sum()) == len(found)
    return MarkerCall(op=op, function=function, caller=caller, tid=tid, is_matched_by_kernel=is_filtered)


def regular_marker(calls: Array, found: FoundSteps) -> StepMarker | None:
    """A call that nearly always comes a period after the one before, where something now and then comes in between.

    An evaluation, or a look at the loss, shifts all steps behind it, so that no call is once in each of them.
    """
    if not found.period:
        return None
    on_stream = np.cumsum(calls["is_enqueue"] & (calls["stream"] == found.stream))
    names = np.unique(calls[["key", "tid"]], return_inverse=True)[1].reshape(-1)
    order = np.argsort(names, kind="stable")
    candidates = []
    for at in np.split(order, np.flatnonzero(np.diff(names[order])) + 1):
        gaps = np.diff(on_stream[at])
        if len(gaps) and (gaps == found.period).mean() >= _MIN_REGULAR and len(at) >= _MIN_REGULAR * found.count:
            candidates.append(int(at[0]))
    best = min(candidates, key=lambda at: (bool(calls["is_launch"][at]), at), default=None)
    if best is None:
        return None
    call = calls[best]
    return StepMarker(key=int(call["key"]), tid=int(call["tid"]), is_launch=bool(call["is_launch"]), near_boundary=0)
