"""The note on counts and sums of event rows: the share of calls with a row, and a statement with exact counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ingero.ops import Source
from ingero.store.opening.opening import Opened
from ingero.store.shares import events_pruned, stored_share
from ingero.store.user_sql.published import Statement
from ingero.units import format_count, format_moment, format_percent

_CUDA = (Source.CUDA, Source.DRIVER, Source.CUDA_GRAPH)
_NCCL = (Source.NCCL,)

# Views of single calls: their sources, and the words for these. The first view that a statement reads decides.
_OF_CALLS: Mapping[str, tuple[tuple[Source, ...], str]] = {
    "events": ((*_CUDA, *_NCCL), "CUDA and NCCL"),
    "cuda_events": (_CUDA, "CUDA"),
    "nccl_events": (_NCCL, "NCCL"),
    "nccl_waits": (_NCCL, "NCCL"),
}
_BY_KERNEL = frozenset({"kernel_name", "function"})
_KEYS = ("node", "rank", "pid")  # which op_stats and kernel_launches have, too


def share_notes(opened: Opened, statement: Statement) -> tuple[str, ...]:
    """Notes for a statement that counts or adds up single calls; empty if all calls have rows."""
    view = next((name for name in _OF_CALLS if name in statement.columns), None)
    return () if view is None or not statement.adds_up else tuple(_notes(opened, statement, view))


def _notes(opened: Opened, statement: Statement, view: str) -> Iterator[str]:
    sources, whose = _OF_CALLS[view]
    share = stored_share(opened.db, sources)
    if not opened.has_exact_totals:
        yield f"Ingero {opened.older_version} stored part of the calls in this file and no exact counts."
    elif not share.is_whole:
        times = (
            "; exact times, of all kernels together: op_stats"
            if _wants_times_by_kernel(statement.columns[view])
            else ""
        )
        yield (
            f"{view} holds {format_count(share.stored)} of {format_count(share.calls)} {whose} calls "
            f"({format_percent(share.stored / share.calls)}): all slow and rare calls, plus a random sample. "
            f"Exact: {exact_statement(statement, view)}{times}"
        )
    rows, until_ns = events_pruned(opened.db)
    if rows:
        until = format_moment(until_ns)
        yield f"{format_count(rows)} rows older than {until} were pruned from events to stay within --max-db."


def exact_statement(statement: Statement, view: str) -> str:
    """The statement on the exact counts that comes closest to one on the stored rows."""
    columns = statement.columns[view]
    by_kernel = bool(columns & _BY_KERNEL)  # op_stats does not tell kernels apart
    table = "kernel_launches" if by_kernel else "op_stats"
    keys = [f"t.{name}" for name in _KEYS if name in columns]
    keys.append("kernel_name" if by_kernel else "op_name")
    join = ""
    if "containers" in statement.columns:
        keys.insert(0, "container_id")
        join = " JOIN containers c ON c.cgroup_id = t.cgroup_id"
    sources, _ = _OF_CALLS[view]
    where = "" if by_kernel else f" WHERE source IN ({', '.join(str(int(source)) for source in sources)})"
    sums = "sum(count) AS calls" if by_kernel else "sum(count) AS calls, sum(sum_ns) / 1e6 AS total_ms"
    names = ", ".join(keys)
    return f"SELECT {names}, {sums} FROM {table} t{join}{where} GROUP BY {names}"


def _wants_times_by_kernel(columns: frozenset[str]) -> bool:
    return bool(columns & _BY_KERNEL and columns & {"duration", "duration_ns"})
