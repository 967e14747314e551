"""The chart of a recording by column: shares of wall time, steps per second, CPU use of the host.

Of each process the stream (or the steps) that it is judged by counts; of several processes the shares are on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Incident
from ingero.serve.dashboard.columns import spread
from ingero.serve.dashboard.state import State
from ingero.store.arrays.gpu_streams import GpuStream
from ingero.store.reader import Reader
from ingero.store.records import Snapshot, Window
from ingero.units import SECOND_NS

Array = npt.NDArray[Any]

SYNC_PARTS = ("idle", "busy", "return_delay")
STEP_PARTS = ("host", "blocked")
PARTS = (*SYNC_PARTS, *STEP_PARTS)
_COLUMNS_OF_GPU_STREAMS = ("idle_ns", "busy_ns", "return_delay_ns")
# Of an incident's breakdown, by the first word of its buckets: which part of the chart it was lost in.
_PART_OF = {"idle": 0, "launch": 1, "gpu": 1, "busy": 1, "return_delay": 2}
_MIN_COLUMN_NS = SECOND_NS // 10  # shorter columns would show single steps, not the trend
_MIN_COLUMNS = 60  # however short the time is
_SYNCED = "sync interval"
_PER_STEP = 1_000_000  # a step is spread over the columns that it touches in parts of so many


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartedProcess:
    """A process in the chart. noun: what it is judged by, `step` or `sync interval`."""

    process: int
    pid: int
    name: str
    rank: int | None
    noun: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePart:
    """A part of wall time: one share for each column; null: nothing was measured in it."""

    name: str
    values: list[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPart:
    """Time lost to one incident, as a share of wall time for each column. The parts of the chart are without it."""

    number: int
    cause: str
    severity: str
    values: list[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeChart(State):
    """Columns of step_ns each, begins at times_ns. parts and lost together are 1 where anything was measured.

    has_lost: whether lost time was asked for, and so is taken out of the parts. rate: steps, or where a process has no
    known steps sync intervals, per second and process; rate_of: which. cpu: of the host's CPUs.
    """

    step_ns: int
    times_ns: list[int]
    processes: list[ChartedProcess]
    parts: list[SharePart]
    has_lost: bool
    lost: list[LostPart]
    rate: list[float | None]
    rate_of: str
    cpu: list[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """The sums behind a chart. edges: of the columns; parts: process -> (columns, PARTS), ns; steps: millionths."""

    edges: Array
    charted: tuple[ChartedProcess, ...]
    parts: Mapping[int, Array]
    steps: Mapping[int, Array]
    cpu: list[float | None]


def sums(reader: Reader, whole: Window, window: Window, columns: int) -> Sums:
    """Read the sums for the chart of a window with at most so many columns, of all processes with a pace.

    whole: the window in which paces are found, so that a part of it shows the same streams.
    """
    edges = _edges(window, columns)
    evidence = Evidence(reader, whole)
    gpu_streams = evidence.main_streams
    repeated = {gpu_stream.process: gpu_stream for gpu_stream in evidence.repeated_steps} if gpu_streams else {}
    known = {process.process: process for process in reader.processes()}
    charted = tuple(
        ChartedProcess(process=number, pid=gpu_stream.pid, name=of.name if of else "", rank=of.rank if of else None,
                       noun=gpu_stream.noun)
        for number, gpu_stream in gpu_streams.items() for of in (known.get(number),)
    )  # fmt: skip
    return Sums(
        edges=edges,
        charted=charted,
        parts={number: _parts(gpu_stream, edges) for number, gpu_stream in gpu_streams.items()},
        steps={number: _steps(repeated.get(number, gpu_stream), edges) for number, gpu_stream in gpu_streams.items()},
        cpu=_cpu(reader.snapshots(whole), edges),
    )


def time_chart(
    found: Sums, state: Mapping[str, Any], process: int | None, incidents: Sequence[Incident] | None
) -> TimeChart:
    """The chart of one process, or of all. incidents: None leaves lost time in the parts that it was lost in."""
    numbers = [
        charted_process.process for charted_process in found.charted if process in (None, charted_process.process)
    ]
    count = len(found.edges) - 1
    parts = sum((found.parts[number] for number in numbers), np.zeros((count, len(PARTS)), np.int64))
    wall = parts.sum(axis=1)
    lost: list[LostPart] = []
    for one in incidents or ():
        taken = _taken(one, found, numbers, parts)
        parts = parts - taken
        if taken.any():
            lost.append(LostPart(number=one.number, cause=one.cause, severity=one.severity.name,
                                 values=_shares(taken.sum(axis=1), wall)))  # fmt: skip
    steps = sum((found.steps[number] for number in numbers), np.zeros(count, np.int64))
    rates = steps / _PER_STEP * SECOND_NS / np.maximum(wall, 1)
    nouns = {charted_process.noun for charted_process in found.charted if charted_process.process in numbers}
    return TimeChart(
        **state,
        step_ns=int(found.edges[1] - found.edges[0]),
        times_ns=found.edges[:-1].tolist(),
        processes=list(found.charted),
        parts=[SharePart(name=name, values=_shares(parts[:, at], wall)) for at, name in enumerate(PARTS)
               if parts[:, at].any()],
        has_lost=incidents is not None,
        lost=lost,
        rate=[round(rate, 3) if length else None for rate, length in zip(rates.tolist(), wall.tolist(), strict=True)],
        rate_of=nouns.pop() if len(nouns) == 1 else "step",
        cpu=found.cpu,
    )  # fmt: skip


def _edges(window: Window, columns: int) -> Array:
    """Equal columns from the window's begin on; the last may reach out of it."""
    length = max(window.duration_ns, 1)
    step = max(-(-length // columns), min(_MIN_COLUMN_NS, -(-length // min(_MIN_COLUMNS, columns))), 1)
    return window.begin_ns + step * np.arange(-(-length // step) + 1, dtype=np.int64)


def _parts(gpu_stream: GpuStream, edges: Array) -> Array:
    """(columns, PARTS): where in an interval its parts lie is not kept, so each is spread over all of it."""
    mine = gpu_stream.sync_intervals
    found = spread(
        mine["prev_sync_end_ns"],
        mine["sync_end_ns"],
        np.stack([mine[name] for name in _COLUMNS_OF_GPU_STREAMS], axis=1),
        edges,
    )
    whole = np.zeros((len(edges) - 1, len(PARTS)), np.int64)
    if gpu_stream.is_steps:
        whole[:, len(SYNC_PARTS)] = found[:, 0]
        whole[:, len(SYNC_PARTS) + 1] = found[:, 1] + found[:, 2]
    else:
        whole[:, : len(SYNC_PARTS)] = found
    return whole


def _steps(gpu_stream: GpuStream, edges: Array) -> Array:
    mine = gpu_stream.sync_intervals
    each = (1 + mine["joined"].astype(np.int64)) * _PER_STEP
    found: Array = spread(mine["prev_sync_end_ns"], mine["sync_end_ns"], each[:, None], edges)[:, 0]
    return found


def _cpu(rows: Iterable[Snapshot], edges: Array) -> list[float | None]:
    """Busy share of the host's CPUs, of each snapshot over the time since the previous one; several hosts: average."""
    known = [(row.time_ns - row.elapsed_ns, row.time_ns, row.cpu_percent) for row in rows
             if row.elapsed_ns and row.cpu_percent is not None]  # fmt: skip
    if not known:
        return [None] * (len(edges) - 1)
    begins, ends = (np.array([one[at] for one in known], np.int64) for at in (0, 1))
    lengths = ends - begins
    busy = lengths * np.array([one[2] for one in known]) / 100
    found = spread(begins, ends, np.stack([busy.astype(np.int64), lengths], axis=1), edges)
    return _shares(found[:, 0], found[:, 1])


def _taken(incident: Incident, found: Sums, numbers: Sequence[int], left: Array) -> Array:
    """(columns, PARTS): where time was lost to an incident; never more than what is left there.

    Its timeline gives the lost time by piece, its breakdown the parts. A piece is longer than a column, and a step ends
    in only one piece: within a piece the lost time is put where the part is largest.
    """
    nothing = np.zeros_like(left)
    nouns = {charted_process.process: charted_process.noun for charted_process in found.charted}
    affected = [
        (affected_process.process, affected_process.lost_ns)
        for affected_process in incident.affected
        if affected_process.process in numbers
    ]
    breakdown_ns = sum(incident.breakdown.values())
    pieces = _pieces(incident)
    weights = np.array([(end - begin) * ratio for begin, end, ratio in pieces])
    if not affected or not breakdown_ns or not weights.sum():
        return nothing
    overlaps = _overlaps(pieces, found.edges)
    lost = np.zeros(len(PARTS))
    for process, lost_ns in affected:
        parts = SYNC_PARTS if nouns[process] == _SYNCED else STEP_PARTS
        for bucket, ns in incident.breakdown.items():
            part = parts[min(_PART_OF.get(bucket.split(".")[0], 1), len(parts) - 1)]
            lost[PARTS.index(part)] += lost_ns * ns / breakdown_ns
    for at in np.flatnonzero(lost).tolist():
        there = overlaps * left[:, at]
        shares = there / np.maximum(there.sum(axis=1), 1)[:, None]
        nothing[:, at] = np.rint(lost[at] * (weights / weights.sum()) @ shares).astype(np.int64)
    return np.minimum(nothing, left)


def _pieces(incident: Incident) -> list[tuple[int, int, float]]:
    """Begin, end and lost share of the pieces of its timeline that the incident touches."""
    end_ns = incident.end_ns or (incident.timeline[-1].end_ns if incident.timeline else 0)
    return [(piece.begin_ns, piece.end_ns, piece.lost_ratio) for piece in incident.timeline
            if piece.end_ns > incident.start_ns and piece.begin_ns < end_ns]  # fmt: skip


def _overlaps(pieces: Sequence[tuple[int, int, float]], edges: Array) -> Array:
    """(pieces, columns): the share of each column that lies in each piece."""
    begins, ends = (np.array([one[at] for one in pieces], np.int64)[:, None] for at in (0, 1))
    inside = np.minimum(ends, edges[1:]) - np.maximum(begins, edges[:-1])
    found: Array = np.maximum(inside, 0) / int(edges[1] - edges[0])
    return found


def _shares(part: Array, of: Array) -> list[float | None]:
    ratios = part / np.maximum(of, 1)
    return [round(ratio, 4) if whole else None for ratio, whole in zip(ratios.tolist(), of.tolist(), strict=True)]
