"""CUDA graphs for an assistant: how they were made, and how often they are launched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ingero.ops import OPS, Kind, Source
from ingero.serve.sql import Answer, run_sql
from ingero.units import SECOND_NS, format_count, format_number, format_time_of_day

if TYPE_CHECKING:
    from ingero.store.records import Window

_EXACT = "Graphs are distinguished by their stored launches, a sample of all; totals and rates are exact."
_STORED = "Everything here is of the stored calls only, a part of them."
_NOTHING = "No call on CUDA graphs was recorded in this time."
_MAX_CALLS = 100
MAX_TIME_RANGES = 100  # of launch rates
_LAUNCHES = ", ".join(str(op.code) for op in OPS if op.source is Source.CUDA_GRAPH and op.kind & Kind.GRAPH)


Graphs: TypeAlias = Sequence[Mapping[str, Any]]


def note(*, has_any: bool, is_exact: bool) -> str:
    """The note on the numbers, or that there are none."""
    return _NOTHING if not has_any else _EXACT if is_exact else _STORED


def totals(path: Path, window: Window, pid: int | None) -> dict[str, int]:
    """Exact counts per graph operation."""
    answer = run_sql(
        path,
        f"SELECT op_name, sum(count) FROM op_stats WHERE source = {int(Source.CUDA_GRAPH)} AND "
        f"{_within('timestamp', window, pid)} GROUP BY op_name ORDER BY 2 DESC",
    )
    return {str(name): int(str(count)) for name, count in answer.rows}


def lifecycle(path: Path, window: Window, pid: int | None) -> list[dict[str, Any]]:
    """Captures, instantiations and updates, oldest first."""
    answer = run_sql(
        path,
        f"SELECT timestamp AS time_ns, pid, tid, op, printf('0x%x', handle) AS handle, duration_ns, ret_code "
        f"FROM cuda_events WHERE source = {int(Source.CUDA_GRAPH)} AND op_code NOT IN ({_LAUNCHES}) "
        f"AND {_within('timestamp', window, pid)} ORDER BY timestamp",
        max_rows=_MAX_CALLS,
    )
    return _objects(answer)


def graphs(path: Path, window: Window, pid: int | None) -> list[dict[str, Any]]:
    """The graphs whose launches are stored, most first. Handle 0 is none: older versions stored nothing else."""
    answer = run_sql(
        path,
        "SELECT pid, printf('0x%x', handle) AS handle, count(*) AS stored_launches, min(timestamp) AS first_ns, "
        f"max(timestamp) AS last_ns FROM cuda_events WHERE source = {int(Source.CUDA_GRAPH)} AND op_code IN "
        f"({_LAUNCHES}) AND handle <> 0 AND {_within('timestamp', window, pid)} GROUP BY pid, handle ORDER BY 3 DESC",
        max_rows=_MAX_CALLS,
    )
    return _objects(answer)


def rates(path: Path, window: Window, pid: int | None, window_seconds: int) -> tuple[list[dict[str, Any]], int]:
    """Launches per process and time range of window_seconds, exact; the last time range ends with the window.

    At most MAX_TIME_RANGES, and how many there are more.
    """
    length_ns = window_seconds * SECOND_NS
    launches = (
        f"FROM op_stats WHERE source = {int(Source.CUDA_GRAPH)} AND op IN ({_LAUNCHES}) AND "
        f"{_within('timestamp', window, pid)}"
    )
    origin = f"(SELECT min(timestamp) {launches})"
    answer = run_sql(
        path,
        f"SELECT coalesce(pid, 0), {origin} + (timestamp - {origin}) / {length_ns} * {length_ns}, sum(count), "
        f"count(*) OVER () {launches} GROUP BY 1, 2 ORDER BY 1, 2",
        max_rows=MAX_TIME_RANGES,
    )
    found, total = [], 0
    for row in answer.rows:
        who, begin_ns, count, total = (int(str(value)) for value in row)
        taken_ns = max(min(length_ns, window.end_ns - begin_ns), SECOND_NS)  # counts are of whole seconds
        found.append({"pid": who, "start_ns": begin_ns, "launches": count, "per_s": count * SECOND_NS / taken_ns})
    return found, total - len(found)


def lifecycle_lines(counts: Mapping[str, int], made: Sequence[Mapping[str, Any]], known: Graphs) -> Iterator[str]:
    """The counts, what failed, and the graphs as far as they are known."""
    if counts:
        yield ", ".join(f"{name} {format_count(count)}" for name, count in counts.items())
    failed = [f"{one['op']} returned {one['ret_code']}" for one in made if one["ret_code"]]
    if failed:
        yield f"{len(failed)} of the calls that make and change graphs failed, first: {failed[0]}"
    yield from _graph_lines(known)


def rate_lines(time_ranges: Sequence[Mapping[str, Any]], known: Graphs) -> Iterator[str]:
    """A line per time range and process, then the graphs as far as they are known."""
    for one in time_ranges:
        count, per_s = format_count(one["launches"]), format_number(one["per_s"], 4)
        yield f"{format_time_of_day(one['start_ns'])} pid {one['pid']}: {count} launches, {per_s} per second"
    yield from _graph_lines(known)


def _graph_lines(known: Graphs) -> Iterator[str]:
    """A line per graph."""
    for one in known:
        yield f"graph {one['handle']} of pid {one['pid']}: {format_count(one['stored_launches'])} stored launches"


def _within(column: str, window: Window, pid: int | None) -> str:
    """Rows of a second that the window begins in are counted, too."""
    begin_ns = window.begin_ns - SECOND_NS
    return f"{column} > {begin_ns} AND {column} < {window.end_ns}" + ("" if pid is None else f" AND pid = {pid}")


def _objects(answer: Answer) -> list[dict[str, Any]]:
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
