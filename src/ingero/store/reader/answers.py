"""Converts rows of the reader's larger queries to records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingero.store import histograms
from ingero.store.records import Call, Clocks, OpTotals
from ingero.store.vocabulary import STATE_COLUMNS

_QUANTILES = (0.5, 0.95, 0.99)

# Columns of the view events, in the order of the fields of Call.
CALL_COLUMNS = (
    "id, coalesce(node, ''), timestamp, duration_ns, process, pid, tid, coalesce(comm, ''), source, op, "
    "coalesce(op_name, source || '/' || op), arg0, arg1, arg2, stream, ret_code, gpu_id, cgroup_id, "
    "coalesce(caller_library, ''), coalesce(kernel_name, ''), coalesce(detail, ''), cpu, residual_ns, "
    "involuntary_switches, switches, culprit_pid, coalesce(culprit_name, ''), "
    "culprit_ns, coalesce(waker_kind, ''), waker_tid, "
    "coalesce(waker_name, ''), flags, stack_hash"
)
_CALL_FIELDS = tuple(name for name in Call.__dataclass_fields__ if name != "clocks")


def call(row: tuple[Any, ...]) -> Call:
    """The call of a row of `CALL_COLUMNS` and the times of the eight thread states."""
    plain, times = row[: len(_CALL_FIELDS)], row[len(_CALL_FIELDS) :]
    has_breakdown = times[0] is not None
    return Call(**dict(zip(_CALL_FIELDS, plain, strict=True)), clocks=clocks(times) if has_breakdown else None)


def clocks(values: Sequence[int]) -> Clocks:
    """Thread-state times from eight sums in the order of `vocabulary.STATES`."""
    return Clocks(**dict(zip(STATE_COLUMNS, values, strict=True)))


def op_totals(row: tuple[Any, ...], counts: histograms.Counts | None) -> OpTotals:
    """Totals from a row of sums, thread-state times last, and the histogram of the same calls where there is one."""
    process, pid, source, op, name, count, errors, nested, recorded, sum_ns, max_ns, size, *times = row
    points: list[float | None] = [None] * len(_QUANTILES)
    if counts is not None and counts.any():
        points = [*histograms.percentiles(counts, _QUANTILES, max_ns=float(max_ns))]
    return OpTotals(
        process=process,
        pid=pid,
        source=source,
        op=op,
        name=name,
        count=count,
        errors=errors,
        nested=nested,
        recorded=recorded,
        sum_ns=sum_ns,
        max_ns=max_ns,
        bytes=size,
        clocks=None if times[0] is None else clocks(times),
        p50_ns=points[0],
        p95_ns=points[1],
        p99_ns=points[2],
    )
