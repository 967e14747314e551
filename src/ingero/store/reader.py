"""Everything that is read from a recording: typed questions, frozen answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import apsw
import numpy as np
import numpy.typing as npt

from ingero.ops import Source
from ingero.store import answers, arrays, histograms, host_events, legacy, machine, memory_queries, views
from ingero.store.errors import NotRecordedError
from ingero.store.lanes import Lane, LaneSums, has_digests, read_lane_sums, read_lanes
from ingero.store.opening import Opened, open_database
from ingero.store.records import (
    Call,
    CausalChain,
    ClockTotals,
    Collective,
    Communicator,
    Container,
    CulpritTotals,
    GovernorStep,
    InFlight,
    KernelLaunches,
    Loss,
    MemorySite,
    MissingProbe,
    OffCpu,
    OpShare,
    OpTotals,
    Process,
    Removed,
    SampleTotals,
    Session,
    Snapshot,
    Stack,
    StackTime,
    StoredIncident,
    Thread,
    Throttling,
    WakerTotals,
    Window,
)
from ingero.store.tables import Value
from ingero.store.vocabulary import CLOCK_COLUMNS

SECOND_NS = 1_000_000_000

# A recorder commits every half second; ten missed commits mean that it is gone.
_LIVE_NS = 5 * SECOND_NS

_LONGEST_PERIOD_NS = 60 * SECOND_NS
_LONGEST_SLEEP_NS = 30 * SECOND_NS  # of intervals off the CPU that began before a window and reach into it

# Where recorded time begins and ends. Folded rows say it only to the minute; the bare columns are found by index.
_TIMES = (
    ("start_ns", "raw_events", 0),
    ("b_ns", "raw_epochs", 0),
    ("start_ns", "raw_op_stats WHERE period_s = 1", SECOND_NS - 1),
    ("start_ns", "raw_clock_seconds WHERE period_s = 1", SECOND_NS - 1),
    ("time_ns", "raw_in_flight", 0),
)

_Record = TypeVar("_Record")

# Rows with a period that touch the window; the first condition is there for the index.
_TOUCHES = (
    f"{{0}}start_ns > :begin - {_LONGEST_PERIOD_NS} AND {{0}}start_ns < :end "
    f"AND {{0}}start_ns + {{0}}period_s * {SECOND_NS} > :begin"
)
# How much of a row with a period lies in the window.
_SHARE = (
    f"((min(:end, {{0}}start_ns + {{0}}period_s * {SECOND_NS}) - max(:begin, {{0}}start_ns)) "
    f"/ ({{0}}period_s * {SECOND_NS}.0))"
)
_SUM_CLOCKS = ", ".join(f"sum({{0}}{name})" for name in CLOCK_COLUMNS)
_OF_PROCESS = "AND (:process IS NULL OR {0}process = :process)"


def open_reader(path: Path) -> Reader:
    """Open a database for reading; nothing is ever written to it.

    Raises:
        StoreError: there is no such file, it is not a recording, is damaged, may not be read, or is too new.
    """
    return Reader(path, open_database(path))


class Reader:
    """Questions to one database; a context manager. One thread at a time.

    Methods raise `NotRecordedError` where the file cannot hold the answer (`is_recorded` asks first): an empty answer
    means that there was none.
    """

    def __init__(self, path: Path, opened: Opened) -> None:
        self.path = path
        self.version = opened.version
        self.older_version = opened.older_version
        self.has_exact_totals = opened.has_exact_totals
        self._db = opened.db
        # a file that an earlier build began has not all of them
        self._tables = {name for (name,) in self._rows("SELECT name FROM sqlite_schema WHERE type = 'table'")}

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @property
    def connection(self) -> apsw.Connection:
        """The read-only connection, for users' own SQL over the published views."""
        return self._db

    def is_recorded(self, table: str) -> bool:
        """Whether the file can hold rows of a published view or a raw_ table at all."""
        name = table if table.startswith("raw_") else views.TABLES.get(table, table)
        if not name.startswith("raw_"):
            return True
        return name in legacy.RECORDED if self.older_version else name in self._tables

    # What and when

    def sessions(self) -> list[Session]:
        """The recordings in the file, oldest first."""
        columns = ", ".join(Session.__dataclass_fields__)
        return self._records(Session, f"SELECT {columns} FROM raw_sessions ORDER BY started_ns")

    def processes(self, *, only_targets: bool = True) -> list[Process]:
        """The processes seen, in order of their numbers."""
        columns = ", ".join(Process.__dataclass_fields__)
        where = "WHERE is_target" if only_targets else ""
        return self._records(Process, f"SELECT {columns} FROM raw_processes {where} ORDER BY process")

    def threads(self) -> list[Thread]:
        """The threads seen of traced processes, those last that were seen last."""
        columns = ", ".join(Thread.__dataclass_fields__)
        return self._records(Thread, f"SELECT {columns} FROM raw_threads ORDER BY last_seen_ns", table="raw_threads")

    def is_live(self, now_ns: int) -> bool:
        """Whether somebody is recording into the file at this moment."""
        seen = self._rows("SELECT max(last_seen_ns) FROM raw_sessions WHERE stopped_ns IS NULL")[0][0]
        return not self.older_version and seen is not None and now_ns - seen < _LIVE_NS

    def time_range(self) -> Window | None:
        """From the first to the last recorded moment; None for an empty file."""
        sources = _TIMES[:1] if self.older_version else _TIMES  # their totals are of whole minutes
        ends = [
            (first, last + length_ns)
            for time, source, length_ns in sources
            for first, last in self._rows(
                f"SELECT (SELECT min({time}) FROM {source}), (SELECT max({time}) FROM {source})"
            )
            if first is not None
        ]
        if not ends:
            ends = [(s.started_ns, s.last_seen_ns) for s in self.sessions()]
        if not ends:
            return None
        return Window(begin_ns=min(first for first, _ in ends), end_ns=max(last for _, last in ends) + 1)

    def window(self, since_ns: int | None, now_ns: int) -> Window | None:
        """The last `since_ns` of the recording, or all of it; None for an empty file.

        Counts back from now while the file is being written, else from its newest moment: a saved recording never looks
        empty.
        """
        whole = self.time_range()
        if whole is None:
            return None
        end_ns = max(now_ns, whole.end_ns) if self.is_live(now_ns) else whole.end_ns
        begin_ns = whole.begin_ns if since_ns is None else max(whole.begin_ns, end_ns - since_ns)
        return Window(begin_ns=begin_ns, end_ns=end_ns)

    # Exact sums

    def op_totals(self, window: Window, *, process: int | None = None) -> list[OpTotals]:
        """Totals per process and operation, longest sum first; of the stored calls unless `has_exact_totals`."""
        rows = self._rows(
            f"SELECT t.process, coalesce(p.pid, 0), t.source, t.op, coalesce(o.name, t.source || '/' || t.op), "
            f"sum(t.count), sum(t.errors), sum(t.nested), sum(t.recorded), sum(t.sum_ns), max(t.max_ns), sum(t.bytes), "
            f"{_SUM_CLOCKS.format('t.')} FROM raw_op_stats t LEFT JOIN raw_processes p ON p.process = t.process "
            f"LEFT JOIN ops o ON o.source_id = t.source AND o.op_id = t.op "
            f"WHERE {_TOUCHES.format('t.')} {_OF_PROCESS.format('t.')} GROUP BY t.process, t.source, t.op "
            f"ORDER BY sum(t.sum_ns) DESC",
            window,
            process=process,
        )
        counts = self.op_histograms(window, process=process) if self.is_recorded("raw_call_sites") else {}
        return [answers.op_totals(row, counts.get((row[0], row[2], row[3]))) for row in rows]

    def op_histograms(
        self, window: Window, *, process: int | None = None
    ) -> dict[tuple[int, int, int], histograms.Counts]:
        """Histograms by (process, source, op), summed over call sites, of the minutes that touch the window."""
        packed: dict[tuple[int, int, int], list[bytes]] = defaultdict(list)
        for number, source, op, blob in self._rows(
            f"SELECT process, source, op, histogram FROM raw_call_sites WHERE {_TOUCHES.format('')} "
            f"{_OF_PROCESS.format('')}",
            window,
            table="raw_call_sites",
            process=process,
        ):
            packed[number, source, op].append(blob)
        return {key: histograms.merge(blobs) for key, blobs in packed.items()}

    def kernel_launches(self, window: Window, *, process: int | None = None) -> list[KernelLaunches]:
        """Launches per process, GPU kernel and library that issued them, most first."""
        return self._records(
            KernelLaunches,
            f"SELECT k.process, iif(n.name IS NULL, k.function, 0) AS nameless, coalesce(n.name, '') AS name, "
            f"coalesce(n.short_name, ''), coalesce(s.text, '') AS library, coalesce(n.source_of_name, ''), "
            f"sum(k.count) FROM raw_kernel_launches k LEFT JOIN raw_strings s ON s.string = k.library "
            f"LEFT JOIN raw_kernels n ON n.process = k.process AND n.function = k.function "
            f"AND n.generation = k.generation WHERE {_TOUCHES.format('k.')} {_OF_PROCESS.format('k.')} "
            f"GROUP BY k.process, nameless, name, s.text ORDER BY sum(k.count) DESC",
            window,
            table="raw_kernel_launches",
            process=process,
        )

    def memory_sites(self, window: Window, *, process: int | None = None) -> list[MemorySite]:
        """What call sites held of GPU memory, those first that held most at the end."""
        return self._records(MemorySite, memory_queries.SITES, window, table="raw_allocations", process=process)

    def memory_seconds(self, window: Window, *, process: int | None = None) -> npt.NDArray[np.void]:
        """What processes held, in order of time: `arrays.MEMORY_SECOND_DTYPE`.

        A row where a level changed, and each minute; first those, older than the window, that it begins with.
        """
        rows = self._rows(memory_queries.SECONDS, window, table="raw_memory_seconds", process=process)
        return arrays.memory_seconds(rows)

    def clock_totals(self, window: Window) -> list[ClockTotals]:
        """What the threads of each process did, summed over threads and time; `threads` is the most at once."""
        rows = self._rows(
            f"SELECT c.process, coalesce(p.pid, 0), sum(c.switches), sum(c.preemptions), max(c.threads), "
            f"sum(c.major_faults), {_SUM_CLOCKS.format('c.')} FROM raw_clock_seconds c "
            f"LEFT JOIN raw_processes p ON p.process = c.process "
            f"WHERE {_TOUCHES.format('c.')} GROUP BY c.process ORDER BY c.process",
            window,
            table="raw_clock_seconds",
        )
        return [
            ClockTotals(
                process=r[0],
                pid=r[1],
                switches=r[2],
                preemptions=r[3],
                threads=r[4],
                major_faults=r[5],
                clocks=answers.clocks(r[6:]),
            )
            for r in rows
        ]

    def clock_seconds(self, window: Window, *, process: int | None = None) -> npt.NDArray[np.void]:
        """The same per second, in order of time: `arrays.CLOCK_SECOND_DTYPE`."""
        rows = self._rows(
            f"SELECT {arrays.CLOCK_SECOND_COLUMNS} FROM raw_clock_seconds WHERE {_TOUCHES.format('')} "
            f"{_OF_PROCESS.format('')} ORDER BY start_ns",
            window,
            table="raw_clock_seconds",
            process=process,
        )
        return arrays.clock_seconds(rows)

    def culprits(self, window: Window, *, process: int | None = None) -> list[CulpritTotals]:
        """Who ran while a process waited, most time first; idle and unknown are among them."""
        return self._records(
            CulpritTotals,
            f"SELECT c.process, t.name, c.culprit_pid, coalesce(s.text, ''), c.culprit_cgroup_id, sum(c.ns), "
            f"sum(c.switches) FROM raw_culprits c LEFT JOIN thread_states t ON t.id = c.kind "
            f"LEFT JOIN raw_strings s ON s.string = c.culprit_name WHERE {_TOUCHES.format('c.')} "
            f"{_OF_PROCESS.format('c.')} "
            f"GROUP BY c.process, c.kind, c.culprit_pid, c.culprit_name, c.culprit_cgroup_id ORDER BY sum(c.ns) DESC",
            window,
            table="raw_culprits",
            process=process,
        )

    def culprit_shares(self, window: Window, *, process: int) -> list[CulpritTotals]:
        """The same of one process, of seconds that reach out of the window only the share that lies in it."""
        return self._records(
            CulpritTotals,
            f"SELECT c.process, t.name, c.culprit_pid, coalesce(s.text, ''), c.culprit_cgroup_id, "
            f"cast(sum(c.ns * {_SHARE.format('c.')}) AS INTEGER), "
            f"cast(sum(c.switches * {_SHARE.format('c.')}) AS INTEGER) "
            f"FROM raw_culprits c LEFT JOIN thread_states t ON t.id = c.kind "
            f"LEFT JOIN raw_strings s ON s.string = c.culprit_name WHERE {_TOUCHES.format('c.')} "
            f"{_OF_PROCESS.format('c.')} "
            f"GROUP BY c.process, c.kind, c.culprit_pid, c.culprit_name, c.culprit_cgroup_id ORDER BY sum(c.ns) DESC",
            window,
            table="raw_culprits",
            process=process,
        )

    def op_span(self, window: Window, *, process: int) -> Window:
        """The window, longer by the rest of the seconds that touch it."""
        rows = self._rows(
            f"SELECT min(start_ns), max(start_ns + period_s * {SECOND_NS}) FROM raw_op_stats "
            f"WHERE {_TOUCHES.format('')} {_OF_PROCESS.format('')}",
            window,
            process=process,
        )
        begin, end = rows[0]
        if begin is None:
            return window
        return Window(begin_ns=min(begin, window.begin_ns), end_ns=max(end, window.end_ns))

    def op_shares(self, window: Window, *, process: int) -> list[OpShare]:
        """Calls of one process per operation; of seconds that reach out of the window the share that lies in it."""
        return self._records(
            OpShare,
            f"SELECT t.source, t.op, coalesce(o.name, t.source || '/' || t.op), sum(t.count * {_SHARE.format('t.')}), "
            f"sum(t.sum_ns * {_SHARE.format('t.')}), sum(t.bytes * {_SHARE.format('t.')}), "
            f"sum(t.errors * {_SHARE.format('t.')}) "
            f"FROM raw_op_stats t LEFT JOIN ops o ON o.source_id = t.source AND o.op_id = t.op "
            f"WHERE {_TOUCHES.format('t.')} {_OF_PROCESS.format('t.')} GROUP BY t.source, t.op",
            window,
            process=process,
        )

    def wakers(self, window: Window, *, process: int | None = None) -> list[WakerTotals]:
        """Who ended the sleeps of a process, longest sleep first."""
        return self._records(
            WakerTotals,
            f"SELECT w.process, k.name, w.waker_pid, w.waker_tid, coalesce(s.text, ''), sum(w.count), sum(w.sleep_ns) "
            f"FROM raw_wakers w LEFT JOIN waker_kinds k ON k.id = w.waker_kind "
            f"LEFT JOIN raw_strings s ON s.string = w.waker_name WHERE {_TOUCHES.format('w.')} "
            f"{_OF_PROCESS.format('w.')} GROUP BY w.process, w.waker_kind, w.waker_pid, w.waker_tid, w.waker_name "
            f"ORDER BY sum(w.sleep_ns) DESC",
            window,
            table="raw_wakers",
            process=process,
        )

    def throttling(self, window: Window) -> list[Throttling]:
        """How often and how long each control group was throttled."""
        return self._records(
            Throttling,
            f"SELECT cgroup_id, sum(nr_throttled), sum(throttled_ns) FROM raw_cgroup_throttling "
            f"WHERE {_TOUCHES.format('')} GROUP BY cgroup_id HAVING sum(nr_throttled) > 0",
            window,
            table="raw_cgroup_throttling",
        )

    # The machine

    def process_gpus(self) -> dict[tuple[int, int], str]:
        """Which GPU (uuid) a device ordinal of a process means, where that could be told: by (process, ordinal)."""
        rows = self._rows("SELECT process, ordinal, uuid FROM raw_process_gpus", table="raw_process_gpus")
        return {(process, ordinal): uuid for process, ordinal, uuid in rows}

    def gpu_samples(self, window: Window) -> list[machine.GpuUse]:
        """What the GPUs were doing, second by second."""
        return [machine.gpu_use(row) for row in self._rows(machine.GPU_SAMPLES_SQL, window, table="raw_gpu_samples")]

    def cpu_seconds(self, window: Window) -> npt.NDArray[np.void]:
        """How each CPU spent the seconds that end in the window, in order of time: `machine.CPU_SECOND_DTYPE`."""
        return machine.cpu_seconds(self._rows(machine.CPU_SECONDS_SQL, window, table="raw_cpu_seconds"))

    def scheduling(self, window: Window, *, process: int | None = None) -> list[machine.Scheduling]:
        """Priorities, CPUs and shares in force at the begin of the window, and each change in it, oldest first."""
        return self._records(
            machine.Scheduling, machine.SCHEDULING_SQL, window, table="raw_scheduling", process=process
        )

    def host_events(
        self, window: Window, *, source: Source | None = None, process: int | None = None
    ) -> list[host_events.HostEvent]:
        """Recorded events of the host that began in the window, oldest first; process: only what befell it."""
        wanted = host_events.SOURCES if source is None else (source,)
        sql = host_events.SQL.format(sources=",".join(str(int(one)) for one in wanted))
        return host_events.with_stops([host_events.host_event(row) for row in self._rows(sql, window, process=process)])

    # Single things

    def epochs(self, window: Window, *, process: int | None = None) -> npt.NDArray[np.void]:
        """Epochs that ended in the window, in that order: `arrays.EPOCH_DTYPE`."""
        rows = self._rows(
            f"SELECT {arrays.EPOCH_COLUMNS}, e.checkpoints FROM raw_epochs e WHERE e.b_ns >= :begin AND e.b_ns < :end "
            f"{_OF_PROCESS.format('e.')} ORDER BY e.b_ns",
            window,
            table="raw_epochs",
            process=process,
        )
        return arrays.epochs([row[:-1] for row in rows], [row[-1] for row in rows])

    def lanes(self, window: Window) -> list[Lane]:
        """Every lane with the epochs that ended in the window, in short."""
        if not self.is_recorded("raw_epochs"):
            raise NotRecordedError("epochs", f"Ingero {self.older_version}")
        return read_lanes(self._db, window)

    def lane_sums(self, window: Window) -> list[LaneSums] | None:
        """The exact sums of every lane, to within a commit at the window's edges; None where only epochs can tell."""
        is_there = self.is_recorded("raw_epochs") and has_digests(self._db, window)
        return read_lane_sums(self._db, window) if is_there else None

    def stored_calls(self) -> int:
        """How many recorded calls and host events the file holds, at most."""
        rows = self._rows("SELECT (SELECT max(id) FROM raw_events), (SELECT min(id) FROM raw_events)")
        last, first = rows[0]
        return 0 if last is None or self.older_version else int(last) - int(first) + 1

    def incidents(self, window: Window) -> list[StoredIncident]:
        """Incidents that tracing found and that touch the window, oldest first."""
        columns = ", ".join(StoredIncident.__dataclass_fields__)
        return self._records(
            StoredIncident,
            f"SELECT {columns} FROM raw_incidents WHERE start_ns < :end AND coalesce(end_ns, :end) >= :begin "
            f"ORDER BY start_ns, incident",
            window,
            table="raw_incidents",
        )

    def last_incident(self) -> int:
        """The highest number an incident has; 0 where there is none."""
        return int(self._rows("SELECT coalesce(max(incident), 0) FROM raw_incidents")[0][0])

    def counted_until_ns(self) -> int:
        """The end of the last second whose sums are stored."""
        rows = self._rows("SELECT coalesce((SELECT max(start_ns) FROM raw_clock_seconds), 0)")
        return int(rows[0][0]) + SECOND_NS

    def offcpu_rows(self, window: Window) -> npt.NDArray[np.void]:
        """Intervals off the CPU that ended in the window or began in it, by their begin: `arrays.OFFCPU_DTYPE`."""
        rows = self._rows(
            f"SELECT {arrays.OFFCPU_COLUMNS} FROM raw_offcpu WHERE start_ns >= :begin - {_LONGEST_SLEEP_NS} "
            f"AND start_ns < :end AND start_ns + duration_ns >= :begin ORDER BY start_ns",
            window,
        )
        return arrays.offcpu(rows)

    def call_rows(
        self,
        window: Window,
        *,
        sources: Sequence[int],
        process: int | None = None,
        ops: Collection[tuple[int, int]] | None = None,
    ) -> npt.NDArray[np.void]:
        """Recorded calls or host events of these sources that began in the window: `arrays.CALL_DTYPE`.

        ops: only these (source, op).
        """
        of_ops = (
            "" if ops is None else f"AND (source, op) IN (VALUES {', '.join(f'({s}, {o})' for s, o in sorted(ops))})"
        )
        rows = self._rows(
            f"SELECT {arrays.CALL_COLUMNS} FROM raw_events WHERE start_ns >= :begin AND start_ns < :end "
            f"AND source IN ({','.join(str(int(source)) for source in sources)}) {of_ops} {_OF_PROCESS.format('')} "
            f"ORDER BY start_ns",
            window,
            process=process,
        )
        return arrays.calls(rows)

    def texts(self, numbers: Sequence[int] | npt.NDArray[np.int64]) -> dict[int, str]:
        """The texts behind numbers of columns that say "string", e.g. class_key of an epoch."""
        wanted = {int(number) for number in numbers}
        rows = self._rows(f"SELECT string, text FROM raw_strings WHERE string IN ({','.join(map(str, wanted))})")
        return {0: ""} | dict(rows)

    def worst_calls(
        self,
        window: Window,
        *,
        process: int | None = None,
        source: int | None = None,
        op: int | None = None,
        limit: int,
    ) -> list[Call]:
        """The longest recorded events that began in the window, longest first."""
        inner = (
            f"SELECT * FROM raw_events WHERE start_ns >= :begin AND start_ns < :end {_OF_PROCESS.format('')} "
            "AND (:source IS NULL OR source = :source) AND (:op IS NULL OR op = :op) "
            "ORDER BY duration_ns DESC LIMIT :limit"
        )
        # Limit first, look up names afterwards: the view over every row of a large file would take seconds.
        view = views.query("events").replace("FROM raw_events e", f"FROM ({inner}) e")
        rows = self._rows(
            f"SELECT {answers.CALL_COLUMNS}, {', '.join(CLOCK_COLUMNS)} FROM ({view}) ORDER BY duration_ns DESC",
            window,
            process=process,
            source=source,
            op=op,
            limit=limit,
        )
        return [answers.call(row) for row in rows]

    def offcpu(self, window: Window, *, process: int | None = None, limit: int) -> list[OffCpu]:
        """The longest intervals off the CPU that began in the window, longest first."""
        inner = (
            f"SELECT * FROM raw_offcpu WHERE start_ns >= :begin AND start_ns < :end {_OF_PROCESS.format('')} "
            "ORDER BY duration_ns DESC LIMIT :limit"
        )
        view = views.query("offcpu").replace("FROM raw_offcpu i", f"FROM ({inner}) i")
        return self._records(
            OffCpu,
            f"SELECT timestamp, duration_ns, process, pid, tid, coalesce(comm, ''), state, woken_ns, cpu, culprit_pid, "
            f"coalesce(culprit_name, ''), culprit_ns, coalesce(waker_kind, ''), waker_pid, waker_tid, "
            f"coalesce(waker_name, '') FROM ({view}) ORDER BY duration_ns DESC",
            window,
            process=process,
            limit=limit,
        )

    def in_flight(self, window: Window) -> list[InFlight]:
        """Calls seen open in the window, each with the last time it was; longest open first."""
        return self._records(
            InFlight,
            "SELECT max(f.time_ns), f.process, f.pid, f.tid, f.source, f.op, coalesce(o.name, ''), f.since_ns, "
            "max(f.stack_hash), max(f.handle), max(f.communicator), max(f.sequence) "
            "FROM raw_in_flight f LEFT JOIN ops o ON o.source_id = f.source AND o.op_id = f.op "
            "WHERE f.time_ns >= :begin AND f.time_ns < :end GROUP BY f.process, f.tid, f.source, f.op, f.since_ns "
            "ORDER BY max(f.time_ns) - f.since_ns DESC",
            window,
            table="raw_in_flight",
        )

    def communicators(self) -> list[Communicator]:
        """The communicators of every rank that was traced."""
        columns = ", ".join(Communicator.__dataclass_fields__)
        return self._records(
            Communicator,
            f"SELECT {columns} FROM raw_communicators ORDER BY process, number",
            table="raw_communicators",
        )

    def last_collectives(self, window: Window, *, process: int, limit: int) -> list[Collective]:
        """The last recorded collectives of one rank in the window, latest first; sends and receives are none."""
        view = views.query("nccl_events").replace(
            "WHERE e.source = 9", "WHERE e.source = 9 AND e.process = :process AND e.start_ns BETWEEN :begin AND :end"
        )
        return self._records(
            Collective,
            f"SELECT process, timestamp, op, comm_id_hash, communicator, sequence, coalesce(datatype_name, ''), "
            f"coalesce(reduce_op_name, ''), root, bytes, stack_hash FROM ({view}) "
            f"WHERE datatype IS NOT NULL AND peer IS NULL ORDER BY timestamp DESC LIMIT :limit",
            window,
            table="raw_communicators",
            process=process,
            limit=limit,
        )

    def snapshots(self, window: Window) -> list[Snapshot]:
        """The system, second by second."""
        columns = ", ".join(Snapshot.__dataclass_fields__)
        return self._records(
            Snapshot,
            f"SELECT {columns} FROM raw_snapshots WHERE time_ns >= :begin AND time_ns < :end ORDER BY time_ns",
            window,
        )

    def losses(self, window: Window | None = None) -> list[Loss]:
        """What was lost or could not be told, by session, counter and reason; of the whole file without a window."""
        where = "" if window is None else "WHERE start_ns >= :begin AND start_ns < :end"
        return self._records(
            Loss,
            f"SELECT session, counter, reason, sum(count) FROM raw_losses {where} GROUP BY session, counter, reason "
            f"ORDER BY sum(count) DESC",
            window,
            table="raw_losses",
        )

    def governor_steps(self, window: Window) -> list[GovernorStep]:
        """What was in force at the begin of the window, and each step in it, oldest first."""
        columns = ", ".join(GovernorStep.__dataclass_fields__)
        return self._records(
            GovernorStep,
            f"SELECT {columns} FROM raw_governor WHERE time_ns < :end AND time_ns >= "
            f"coalesce((SELECT max(time_ns) FROM raw_governor WHERE time_ns <= :begin), :begin) ORDER BY time_ns, id",
            window,
            table="raw_governor",
        )

    def removed(self) -> list[Removed]:
        """What the size limit has taken from the file so far, longest ago last; empty: nothing."""
        if self.older_version:
            return []
        columns = "replace(name, 'raw_', '') AS name, kind, until_ns, rows, noted_ns, max_db_bytes"
        return self._records(Removed, f"SELECT {columns} FROM raw_removed WHERE rows > 0 ORDER BY until_ns DESC, name")

    def missing_probes(self) -> list[MissingProbe]:
        """Calls that were not traced, per copy of a library."""
        return self._records(
            MissingProbe,
            "SELECT session, library, symbol, source, op, reason FROM raw_probes WHERE NOT is_attached "
            "ORDER BY session, library, symbol",
            table="raw_probes",
        )

    def containers(self) -> list[Container]:
        """The control groups seen."""
        columns = ", ".join(Container.__dataclass_fields__)
        return self._records(Container, f"SELECT {columns} FROM raw_cgroups ORDER BY cgroup_id")

    def stacks(self, hashes: Sequence[int]) -> list[Stack]:
        """The stacks with these hashes, as far as they are stored."""
        numbers = ",".join(str(int(value)) for value in hashes)
        return self._records(Stack, f"SELECT hash, ips, frames, note FROM raw_stacks WHERE hash IN ({numbers})")

    def stack_times(self, window: Window, *, process: int, sources: Sequence[int]) -> list[StackTime]:
        """The recorded calls of these sources that began in the window by operation and stack, longest sum first."""
        return self._records(
            StackTime,
            f"SELECT e.process, e.source, e.op, coalesce(o.name, e.source || '/' || e.op), e.stack_hash, e.calls, e.ns "
            f"FROM (SELECT process, source, op, stack_hash, count(*) AS calls, sum(duration_ns) AS ns FROM raw_events "
            f"WHERE start_ns >= :begin AND start_ns < :end AND process = :process "
            f"AND source IN ({','.join(str(int(source)) for source in sources)}) GROUP BY source, op, stack_hash) e "
            f"LEFT JOIN ops o ON o.source_id = e.source AND o.op_id = e.op ORDER BY e.ns DESC",
            window,
            process=process,
        )

    def drain_stacks(self, window: Window, *, process: int) -> dict[int, int]:
        """When a recorded drain of the process returned (b_ns of its epoch) -> the hash of its stack."""
        rows = self._rows(
            "SELECT start_ns + duration_ns, stack_hash FROM raw_events WHERE start_ns >= :begin AND start_ns < :end "
            "AND process = :process AND stack_hash <> 0 AND start_ns + duration_ns IN "
            "(SELECT b_ns FROM raw_epochs WHERE b_ns >= :begin AND process = :process)",
            window,
            table="raw_epochs",
            process=process,
        )
        return dict(rows)

    def samples(self, window: Window, *, process: int | None = None) -> list[SampleTotals]:
        """Where threads were outside traced calls, by thread, state and stack, most time first."""
        return self._records(
            SampleTotals,
            f"SELECT s.process, s.pid, s.tid, coalesce(t.text, ''), n.name, s.is_collecting, s.stack_hash, count(*), "
            f"sum(s.weight_ns) FROM raw_samples s LEFT JOIN raw_strings t ON t.string = s.comm "
            f"LEFT JOIN thread_states n ON n.id = s.state WHERE s.time_ns >= :begin AND s.time_ns < :end "
            f"{_OF_PROCESS.format('s.')} GROUP BY s.process, s.tid, s.comm, s.state, s.is_collecting, s.stack_hash "
            f"ORDER BY sum(s.weight_ns) DESC",
            window,
            table="raw_samples",
            process=process,
        )

    def sample_rows(self, window: Window, *, process: int | None = None) -> npt.NDArray[np.void]:
        """The same one by one, in order of time: `arrays.SAMPLE_DTYPE`."""
        rows = self._rows(
            f"SELECT {arrays.SAMPLE_COLUMNS} FROM raw_samples WHERE time_ns >= :begin AND time_ns < :end "
            f"{_OF_PROCESS.format('')} ORDER BY time_ns",
            window,
            table="raw_samples",
            process=process,
        )
        return arrays.samples(rows)

    def causal_chains(self, window: Window) -> list[CausalChain]:
        """Stored chains that were detected in the window, oldest first."""
        return self._records(
            CausalChain,
            "SELECT c.chain, coalesce(s.node, ''), c.detected_ns, c.severity, c.summary, c.root_cause, c.explanation, "
            "c.recommendations, c.cuda_op, c.cuda_p99_us, c.cuda_p50_us, c.tail_ratio, c.timeline "
            "FROM raw_causal_chains c LEFT JOIN raw_sessions s ON s.session = c.session "
            "WHERE c.detected_ns >= :begin AND c.detected_ns < :end ORDER BY c.detected_ns, c.chain",
            window,
        )

    def _records(
        self, record: type[_Record], sql: str, window: Window | None = None, *, table: str = "", **values: Value
    ) -> list[_Record]:
        names = tuple(record.__dataclass_fields__)  # type: ignore[attr-defined]  # every caller passes a dataclass
        return [record(**dict(zip(names, row, strict=True))) for row in self._rows(sql, window, table=table, **values)]

    # A row is a tuple of what the SELECT beside it names; its types are known only there.
    def _rows(
        self, sql: str, window: Window | None = None, *, table: str = "", **values: Value
    ) -> list[tuple[Any, ...]]:
        if table and not self.is_recorded(table):
            by = f"Ingero {self.older_version}" if self.older_version else "the build of ingero that began this file"
            raise NotRecordedError(table.removeprefix("raw_").replace("_", " "), by)
        if window is not None:
            values |= {"begin": window.begin_ns, "end": window.end_ns}
        return list(self._db.execute(sql, values))
