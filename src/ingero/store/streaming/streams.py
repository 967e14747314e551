"""Rows of a recording in the order of time, one at a time: a recording of any size passes through constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from ingero.ops import HostOp, Source
from ingero.store.machine import SNAPSHOTS_SQL
from ingero.store.reader import Reader
from ingero.store.reader.questions import records
from ingero.store.records import Snapshot, StoredIncident, Window
from ingero.store.streaming.stream_rows import (
    DropRow,
    EventRow,
    GpuRow,
    InFlightRow,
    OffCpuRow,
    StackWeight,
    StepRow,
    SyncIntervalRow,
    ThreadsRow,
    columns_of,
)
from ingero.store.vocabulary import STATE_COLUMNS
from ingero.store.writing.tables import Value

# A call that began this long before the window and reaches into it is still found by the index on the begin.
LOOK_BACK_NS = 600 * 1_000_000_000

_PROBE_COST_LIMIT_NS = (
    20_000  # the recorder leaves it out of calls (docs/adr/0006), not out of sync intervals; about 1 us
)
_CLOCK_ROUNDING_NS = 2  # both times are converted from the monotonic clock on their own

_Row = TypeVar("_Row", bound=tuple[Any, ...])

_BEGAN = "start_ns >= :begin AND start_ns < :end"
_REACHES_IN = (
    f"start_ns >= :begin - {LOOK_BACK_NS} AND start_ns < :end "
    "AND (start_ns >= :begin OR start_ns + duration_ns > :begin)"
)
_ENDED = "end_ns >= :begin AND end_ns < :end"
_OF_PID = "AND (:pid IS NULL OR pid = :pid)"
_NO_SWITCHES = f"AND NOT (source = {Source.HOST:d} AND op = {HostOp.SCHED_SWITCH:d})"  # older files: the rows of offcpu
_SYNC_START = (
    "(SELECT v.start_ns FROM raw_events v WHERE v.start_ns BETWEEN e.sync_start_ns "
    f"AND e.sync_start_ns + {_PROBE_COST_LIMIT_NS} "
    "AND v.tid = e.sync_tid AND v.process = e.process AND v.start_ns + v.duration_ns = e.sync_end_ns)"
)


class Streams:
    """The rows of one recording in a window for an export, of all processes or of those with one pid."""

    def __init__(self, reader: Reader, window: Window, *, pid: int | None = None) -> None:
        self.reader = reader
        self.window = window
        self.pid = pid

    def first_ns(self) -> int | None:
        """The earliest time that the rows of the window reach back to; None if there are none.

        With a pid, what was sampled of the machine does not count.
        """
        candidates = [
            f"(SELECT start_ns FROM raw_events WHERE {_REACHES_IN} {_OF_PID} ORDER BY start_ns LIMIT 1)",
            f"(SELECT start_ns FROM raw_offcpu WHERE {_REACHES_IN} {_OF_PID} ORDER BY start_ns LIMIT 1)",
            "(SELECT min(sync_end_ns - idle_ns - busy_ns - return_delay_ns) FROM raw_sync_intervals "
            f"WHERE sync_end_ns >= :begin AND sync_end_ns < :end {_OF_PID})",
            f"(SELECT min(since_ns) FROM raw_in_flight WHERE time_ns >= :begin AND time_ns < :end {_OF_PID})",
        ]
        if self.reader.is_recorded("raw_steps"):
            candidates.append(f"(SELECT min(start_ns) FROM raw_steps WHERE {_ENDED} {_OF_PID})")
        if self.pid is None:
            candidates += [
                "(SELECT min(start_ns) FROM raw_incidents WHERE start_ns < :end AND coalesce(end_ns, :end) >= :begin)",
                "(SELECT min(time_ns) FROM raw_snapshots WHERE time_ns >= :begin AND time_ns < :end)",
                f"(SELECT min(start_ns) FROM raw_thread_state_seconds WHERE {_BEGAN})",
                "(SELECT min(detected_ns) FROM raw_causal_chains WHERE detected_ns >= :begin AND detected_ns < :end)",
            ]
        found = self.reader.connection.execute(f"VALUES {', '.join(f'({one})' for one in candidates)}", self._values())
        return min((row[0] for row in found if row[0] is not None), default=None)

    def events(self) -> Iterator[EventRow]:
        """Calls and host events, by begin; of those that begin together, the longer one first."""
        switches = _NO_SWITCHES if self.reader.older_version else ""
        return self._rows(
            EventRow,
            f"SELECT {columns_of(EventRow)} FROM raw_events WHERE {_REACHES_IN} {_OF_PID} {switches} "
            "ORDER BY start_ns, duration_ns DESC",
        )

    def offcpu(self) -> Iterator[OffCpuRow]:
        """Intervals off the CPU, by begin."""
        return self._rows(
            OffCpuRow,
            f"SELECT {columns_of(OffCpuRow)} FROM raw_offcpu WHERE {_REACHES_IN} {_OF_PID} ORDER BY start_ns",
        )

    def sync_intervals(self) -> Iterator[SyncIntervalRow]:
        """Sync intervals that ended in the window, by end."""
        columns = columns_of(SyncIntervalRow, "e").replace("e.recorded_sync_start_ns", _SYNC_START)
        return self._rows(
            SyncIntervalRow,
            f"SELECT {columns} FROM raw_sync_intervals e "
            f"WHERE e.sync_end_ns >= :begin AND e.sync_end_ns < :end {_OF_PID} ORDER BY e.sync_end_ns",
            table="raw_sync_intervals",
        )

    def steps(self) -> Iterator[StepRow]:
        """Steps that ended in the window, by end; nothing where the recording is older than these."""
        return self._rows(
            StepRow,
            f"SELECT {columns_of(StepRow)} FROM raw_steps WHERE {_ENDED} {_OF_PID} ORDER BY end_ns",
            table="raw_steps",
        )

    def first_enqueue(self, sync_interval: SyncIntervalRow) -> int | None:
        """When the recorded call began that was the first enqueue of a sync interval; None where it has no row.

        What was left out of the sync for its probe was left out of the enqueue as well.
        """
        if sync_interval.recorded_sync_start_ns is None:
            return None
        start_ns = sync_interval.first_launch_ns + sync_interval.recorded_sync_start_ns - sync_interval.sync_start_ns
        found = self.reader.connection.execute(
            "SELECT start_ns FROM raw_events WHERE start_ns BETWEEN ? AND ? AND tid = ? AND process = ? LIMIT 1",
            (
                start_ns - _CLOCK_ROUNDING_NS,
                start_ns + _CLOCK_ROUNDING_NS,
                sync_interval.first_launch_tid,
                sync_interval.process,
            ),
        )
        return next((int(row[0]) for row in found), None)

    def snapshots(self) -> Iterator[Snapshot]:
        """The system's samples, by time."""
        return records(Snapshot, self.reader.connection.execute(SNAPSHOTS_SQL, self._values()))

    def gpus(self) -> Iterator[GpuRow]:
        """The NVML samples of each GPU, by time; nothing where the recording is older than these samples."""
        if not any(self.reader.connection.execute("SELECT 1 FROM pragma_table_info('raw_gpu_samples')")):
            return iter(())
        return self._rows(
            GpuRow,
            f"SELECT {columns_of(GpuRow)} FROM raw_gpu_samples WHERE time_ns >= :begin AND time_ns < :end "
            "ORDER BY time_ns",
        )

    def threads(self) -> Iterator[ThreadsRow]:
        """Thread-state time of each process, by time."""
        return self._rows(
            ThreadsRow,
            f"SELECT {columns_of(ThreadsRow)} FROM raw_thread_state_seconds WHERE {_BEGAN} AND (:pid IS NULL "
            "OR process IN (SELECT process FROM raw_processes WHERE pid = :pid)) ORDER BY start_ns",
            table="raw_thread_state_seconds",
        )

    def in_flight(self) -> Iterator[InFlightRow]:
        """Calls in flight per process, by time."""
        return self._rows(
            InFlightRow,
            "SELECT session, process, pid, time_ns, count(*) FROM raw_in_flight WHERE time_ns >= :begin "
            f"AND time_ns < :end {_OF_PID} GROUP BY time_ns, process ORDER BY time_ns",
            table="raw_in_flight",
        )

    def incidents(self) -> Iterator[StoredIncident]:
        """Incidents that touch the window, by begin."""
        return iter(self.reader.incidents(self.window) if self.reader.is_recorded("raw_incidents") else ())

    def drops(self) -> Iterator[DropRow]:
        """Dropped data, by time."""
        return self._rows(
            DropRow,
            f"SELECT session, start_ns, counter, reason, count FROM raw_drops WHERE {_BEGAN} ORDER BY start_ns",
            table="raw_drops",
        )

    def stack_weights(self) -> Iterator[StackWeight]:
        """The recorded calls of the traced libraries that began in the window, summed by operation and stack."""
        off_cpu = " + ".join(name for name in STATE_COLUMNS if name != "run_ns")
        sources = ", ".join(f"{one:d}" for one in (Source.CUDA, Source.DRIVER, Source.CUDA_GRAPH, Source.NCCL))
        return self._rows(
            StackWeight,
            f"SELECT process, pid, source, op, stack_hash, count(*), sum(duration_ns), sum({off_cpu}) FROM raw_events "
            f"WHERE {_BEGAN} {_OF_PID} AND source IN ({sources}) GROUP BY process, pid, source, op, stack_hash",
        )

    def _rows(self, row: type[_Row], sql: str, *, table: str = "") -> Iterator[_Row]:
        if table and not self.reader.is_recorded(table):
            return iter(())
        make = row._make  # type: ignore[attr-defined]  # of every NamedTuple
        return map(make, self.reader.connection.execute(sql, self._values()))

    def _values(self) -> dict[str, Value]:
        return {"begin": self.window.begin_ns, "end": self.window.end_ns, "pid": self.pid}
