"""Keeps a database under its size limit: prunes detail first, oldest first; downsamples seconds; keeps incidents."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import apsw

from ingero.store.conditions import sum_of
from ingero.store.vocabulary import STATE_COLUMNS
from ingero.store.writing.migrations import pragma
from ingero.units import SECOND_NS

MINUTE_NS = 60 * SECOND_NS
BUSY_MS = 2_000  # how long a statement waits for another connection

# Work begins this part below the limit, or twice the largest growth between two looks if that is more, so that what is
# written meanwhile still fits; and it goes on for as much again, so that there is room for a while.
_MARGIN = 0.05
_MAX_MARGIN = 0.25

# A step is to take this long, a fifth of what rows may wait (100 ms): disk and CPU may be slower the next time.
STEP_S = 0.02
_FIRST_STEP_ROWS = MIN_STEP_ROWS = 1_000  # fewer would be mostly the commit: a busy CPU must not end the work
_MAX_STEP_ROWS = 50_000
_STACKS_AT_ONCE = 250  # per step; a stack takes about 5 KB

# How far the oldest detail must have moved until ended processes are looked through again.
_LOOK_AGAIN_NS = MINUTE_NS

_MAX_LOG_BYTES = 64 << 20
_LOG_PART = 16  # the log may take 1/16 of the size limit, where that is less
_LOG_ROOM = 1.5  # times the largest log of late: the next statement that reads may take longer than any before
_HELD = 2  # times its limit with a reader in the way: then the reader holds the log for long
_READERS_MS = 20  # how long a reset of the log waits for readers

# The newest minutes keep their detail and their resolution while there is anything else to drop.
KEEP_NS = 10 * MINUTE_NS

_DETAIL = (
    ("raw_events", "start_ns"),
    ("raw_offcpu", "start_ns"),
    ("raw_in_flight", "time_ns"),
    ("raw_halts", "time_ns"),
    ("raw_stack_samples", "time_ns"),
    ("raw_sync_intervals", "sync_end_ns"),
    ("raw_progress_marks", "time_ns"),
    ("raw_gpu_activities", "start_ns"),
    ("raw_user_ranges", "start_ns"),
)
_AGGREGATES = (
    ("raw_sync_interval_digest", "end_ns"),
    ("raw_steps", "end_ns"),
    ("raw_snapshots", "time_ns"),
    ("raw_cpu_seconds", "time_ns"),
    ("raw_gpu_samples", "time_ns"),
    ("raw_scheduling", "time_ns"),
    ("raw_kernel_launches", "start_ns"),
    ("raw_allocations", "start_ns"),
    ("raw_memory_seconds", "start_ns"),
    ("raw_wakers", "start_ns"),
    ("raw_cgroup_throttling", "start_ns"),
    ("raw_culprits", "start_ns"),
    ("raw_thread_state_seconds", "start_ns"),
    ("raw_copies", "start_ns"),
    ("raw_op_stats", "start_ns"),
    ("raw_call_sites", "start_ns"),
)

# Per folded table: what stays apart, what is summed, what takes the maximum.
_Fold = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
# And what is a level, of which the last one stays.
_LEVELS: dict[str, tuple[str, ...]] = {
    "raw_allocations": ("live_bytes", "live_count"),
    "raw_memory_seconds": ("live_bytes", "live_count"),
}
_FOLDED: dict[str, _Fold] = {
    "raw_op_stats": (
        ("session", "process", "source", "op", "library"),
        ("count", "errors", "nested", "untimed", "recorded", "sum_ns", "bytes", *STATE_COLUMNS),
        ("max_ns",),
    ),
    "raw_copies": (
        ("session", "process", "source", "op"),
        ("host_to_gpu_bytes", "gpu_to_host_bytes", "blocked_ns"),
        (),
    ),
    "raw_kernel_launches": (("session", "process", "function", "generation", "library"), ("count",), ()),
    "raw_allocations": (
        ("session", "process", "source", "op", "caller", "library", "offset", "memory_kind", "stack_hash"),
        ("allocated_bytes", "freed_bytes", "allocations", "frees", "failures", "failed_bytes", "foreign_frees"),
        ("peak_bytes",),
    ),
    "raw_memory_seconds": (("session", "process", "memory_kind"), (), ("peak_bytes", "unpaired")),
    "raw_thread_state_seconds": (
        ("session", "process"),
        (*STATE_COLUMNS, "switches", "involuntary_switches", "major_faults"),
        ("threads",),
    ),
    "raw_culprits": (
        ("session", "process", "kind", "culprit_pid", "culprit_name", "culprit_cgroup_id"),
        ("ns", "switches"),
        (),
    ),
    "raw_wakers": (
        ("session", "process", "waker_kind", "waker_pid", "waker_tid", "waker_name"),
        ("count", "sleep_ns"),
        (),
    ),
    "raw_cgroup_throttling": (("session", "cgroup_id"), ("nr_throttled", "throttled_ns"), ()),
    "raw_drops": (("session", "counter", "reason"), ("count",), ()),
}
# A process that was alive when its recording ended was not seen to end.
_ENDED = (
    "SELECT p.process, coalesce(p.exit_ns, s.stopped_ns) AS ended_ns FROM raw_processes p "
    "LEFT JOIN raw_sessions s USING (session)"
)


def used_bytes(db: apsw.Connection) -> int:
    """Bytes of the database in use; freed pages are reused and do not count."""
    return (pragma(db, "page_count") - pragma(db, "freelist_count")) * pragma(db, "page_size")


def id_span(db: apsw.Connection, name: str) -> int:
    """How many rows a table has at most, without counting: SQLite looks up one end at a time, both at once it scans."""
    span = _number(db, f"SELECT (SELECT max(id) FROM {name}) - (SELECT min(id) FROM {name}) + 1")
    return span or 0


def log_bytes(path: Path) -> int:
    """Bytes of the write-ahead log beside a database."""
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def log_limit_bytes(max_db_bytes: int) -> int:
    """Size limit of the log, which counts as part of the file. max_db_bytes: the limit of both, 0 = none."""
    return min(_MAX_LOG_BYTES, max_db_bytes // _LOG_PART) if max_db_bytes else _MAX_LOG_BYTES


class Retention:
    """Trims an open database in steps short enough to go between two commits.

    max_db_bytes: limit of the file and its log together, 0 = none. clock: unix ns. timer: seconds, for the pace.
    """

    def __init__(
        self,
        db: apsw.Connection,
        path: Path,
        max_db_bytes: int,
        *,
        clock: Callable[[], int] = time.time_ns,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._db, self._path, self._max_db_bytes, self._clock, self._timer = db, path, max_db_bytes, clock, timer
        self._step_rows = _FIRST_STEP_ROWS
        self._is_over = False
        self._held_before = self._most_growth = self._log_part = 0
        self._most_logs = (0, 0)
        self.is_log_held = False
        self._cutoffs_ns: dict[tuple[tuple[str, str], ...], int] = {}
        self._looked_until_ns = 0
        self.steps = 0
        self.longest_step_s = 0.0

    def step(self) -> bool:
        """Run one short transaction towards the limit; true while there is more to do."""
        if not self._max_db_bytes or self.is_log_held:
            return False
        page_count = pragma(self._db, "page_count")
        self._is_over = self._held_bytes() > self._start_bytes() - self._is_over * _MARGIN * self._max_db_bytes
        file_bytes = page_count * pragma(self._db, "page_size")
        is_file_too_large = file_bytes + self._kept_for_log_bytes() > self._max_db_bytes
        if not self._is_over and not (is_file_too_large and pragma(self._db, "freelist_count")):
            return False
        begin = self._timer()
        done = self._trim() if self._is_over else self._shrink()
        self._pace(self._timer() - begin, done)
        return done > 0

    def limit_log(self) -> None:
        """Reset the log if it is too large: SQLite does so itself only while nothing reads the database.

        Waits between two statements of a reader, not for a long one: then the next time is as good. `is_log_held` says
        afterwards whether one was in the way of a log that is twice as large as it may be.
        """
        size_bytes, limit_bytes = log_bytes(self._path), log_limit_bytes(self._max_db_bytes)
        if size_bytes <= limit_bytes:
            self.is_log_held = False
            return
        self._db.set_busy_timeout(_READERS_MS)
        try:
            self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            self.is_log_held = False
        except apsw.BusyError:
            self.is_log_held = size_bytes > _HELD * limit_bytes
        finally:
            self._db.set_busy_timeout(BUSY_MS)

    def has_room(self, needed_bytes: int) -> bool:
        """Whether these bytes fit under the limit, or will when rows are pruned; not where a reader holds the log.

        Then pruning would not help, because it is written into the log, too.
        """
        if not self._max_db_bytes or log_bytes(self._path) <= log_limit_bytes(self._max_db_bytes):
            return True
        self.limit_log()
        file_bytes = pragma(self._db, "page_count") * pragma(self._db, "page_size")
        room_bytes = self._max_db_bytes - file_bytes - log_bytes(self._path)
        return not self.is_log_held or room_bytes > needed_bytes

    def _held_bytes(self) -> int:
        held = used_bytes(self._db) + self._kept_for_log_bytes()
        if self._held_before:
            self._most_growth = max(self._most_growth, held - self._held_before)
        self._held_before = held
        return held

    def _kept_for_log_bytes(self) -> int:
        """Bytes reserved for the log: 1.5 times its limit, or its largest size in the last 10 to 20 minutes.

        It grows for as long as a statement reads. A quarter at most; dropping rows would not make it smaller.
        """
        part = self._clock() // KEEP_NS
        if part != self._log_part:
            self._log_part, self._most_logs = part, (self._most_logs[1], 0)
        self._most_logs = (self._most_logs[0], max(self._most_logs[1], log_bytes(self._path)))
        most = max(*self._most_logs, log_limit_bytes(self._max_db_bytes))
        return min(int(_LOG_ROOM * most), self._max_db_bytes // 4)

    def _start_bytes(self) -> float:
        margin = max(_MARGIN * self._max_db_bytes, 2 * self._most_growth)
        return self._max_db_bytes - min(margin, _MAX_MARGIN * self._max_db_bytes)

    def _pace(self, spent_s: float, done: int) -> None:
        """Steps as large as fit into their time; faster down than up."""
        self.steps += 1
        self.longest_step_s = max(self.longest_step_s, spent_s)
        if spent_s > STEP_S:
            self._step_rows = max(MIN_STEP_ROWS, int(self._step_rows * max(0.1, STEP_S / spent_s / 2)))
        elif done >= self._step_rows and spent_s < STEP_S / 2:
            self._step_rows = min(_MAX_STEP_ROWS, self._step_rows * 3 // 2 + 1)

    def _shrink(self) -> int:
        """Give freed pages of a file that was over its limit from the beginning back to the filesystem."""
        before = pragma(self._db, "freelist_count")
        list(self._db.execute(f"PRAGMA incremental_vacuum({self._step_rows})"))
        return before - pragma(self._db, "freelist_count")

    def _trim(self) -> int:
        newest_ns = _number(self._db, "SELECT max(start_ns) FROM raw_op_stats") or 0
        with self._db:
            done = (
                self._delete_oldest(_DETAIL, newest_ns - KEEP_NS)
                or self._fold_oldest(newest_ns - KEEP_NS)
                or self._delete_stacks()
                or self._delete_oldest(_DETAIL, None)
                or self._fold_oldest(newest_ns)
                or self._delete_oldest(_AGGREGATES, None)
                or self._delete_ended_processes()
            )
        return done  # noqa: RET504  # returning inside: for mypy apsw's `with` may swallow exceptions

    def _delete_oldest(self, tables: tuple[tuple[str, str], ...], before_ns: int | None) -> int:
        """Deletes up to one step of rows, from the table that has any as old as the cut; else the cut moves on."""
        for _ in range(2):
            for name, column in tables:
                deleted = self._delete(name, column, self._cutoffs_ns.get(tables, 0))
                if deleted:
                    return deleted
            if not self._advance_cutoff(tables, before_ns):
                return 0
        return 0

    def _advance_cutoff(self, tables: tuple[tuple[str, str], ...], before_ns: int | None) -> bool:
        """Moves the cut to the end of the next step of the largest table, so that all end at the same time."""
        # Ids grow with time, so their span is the size; counting would read the whole table.
        spans = {name: id_span(self._db, name) for name, _ in tables}
        name, column = max(tables, key=lambda entry: spans[entry[0]])
        limit = "" if before_ns is None else f"WHERE {column} < {before_ns}"
        oldest = f"SELECT {column} AS at FROM {name} {limit} ORDER BY {column} LIMIT {self._step_rows}"
        cutoff_ns = _number(self._db, f"SELECT max(at) FROM ({oldest})")
        self._cutoffs_ns[tables] = cutoff_ns or 0
        return cutoff_ns is not None

    def _delete(self, name: str, column: str, until_ns: int) -> int:
        """Deletes the oldest rows up to a time, at most one step of them; notes it."""
        chosen = f"SELECT id, {column} AS at FROM {name} WHERE {column} <= ? ORDER BY {column} LIMIT ?"
        last_ns = _number(self._db, f"SELECT max(at) FROM ({chosen})", until_ns, self._step_rows)
        if last_ns is None:
            return 0
        self._db.execute(f"DELETE FROM {name} WHERE id IN (SELECT id FROM ({chosen}))", (until_ns, self._step_rows))
        deleted = self._db.changes()
        self._note(name, "removed", last_ns, deleted)
        return deleted

    def _fold_oldest(self, before_ns: int) -> int:
        """Folds up to one step of one-second rows into rows of their minute, for minutes that have ended."""
        end_ns = before_ns // MINUTE_NS * MINUTE_NS
        for name, fold in _FOLDED.items():
            begin_ns = _number(self._db, "SELECT until_ns FROM raw_pruned WHERE name = ? AND kind = 'folded'", name)
            folded = self._fold(name, fold, begin_ns or 0, end_ns)
            if folded:
                return folded
        return 0

    def _fold(self, name: str, fold: _Fold, begin_ns: int, end_ns: int) -> int:
        where = f"start_ns >= {begin_ns} AND start_ns < {end_ns} AND period_s < 60"
        oldest = f"SELECT start_ns AS at FROM {name} WHERE {where} ORDER BY start_ns LIMIT {self._step_rows}"
        span = next(iter(self._db.execute(f"SELECT min(at), max(at), count(*) FROM ({oldest})")))
        first_ns, last_ns, count = span
        if not isinstance(first_ns, int) or not isinstance(last_ns, int):
            if end_ns > begin_ns:
                self._note(name, "folded", end_ns, 0)
            return 0
        minute_ns, is_whole = last_ns // MINUTE_NS * MINUTE_NS, count < self._step_rows
        # Whole minutes, where a step holds one: then each key has one row a minute.
        until_ns = end_ns if is_whole else minute_ns if minute_ns > first_ns else last_ns + 1
        folded = self._fold_between(name, fold, begin_ns, until_ns)
        self._note(name, "folded", until_ns // MINUTE_NS * MINUTE_NS, folded)
        return folded

    def _fold_between(self, name: str, fold: _Fold, begin_ns: int, end_ns: int) -> int:
        keys, sums, maxima = fold
        levels = _LEVELS.get(name, ())
        columns = ", ".join(("start_ns", "period_s", *keys, *sums, *maxima, *levels))
        minute = f"start_ns / {MINUTE_NS} * {MINUTE_NS}"
        folded_values = (*(sum_of(n) for n in sums), *(f"max({n})" for n in maxima))
        values = ", ".join((minute, "60", *keys, *folded_values, *(f"sum(iif(is_last, {n}, 0))" for n in levels)))
        where = f"start_ns >= {begin_ns} AND start_ns < {end_ns} AND period_s < 60"
        group = f"{minute}, {', '.join(keys)}"
        source = name
        if levels:
            order = f"(PARTITION BY {group} ORDER BY start_ns, id)"
            source = f"(SELECT *, lead(id) OVER {order} IS NULL AS is_last FROM {name} WHERE {where})"
        grouped = f"SELECT {values} FROM {source} WHERE {where} GROUP BY {group}"
        self._db.execute(f"CREATE TEMP TABLE folded AS {grouped}")
        self._db.execute(f"DELETE FROM {name} WHERE {where}")
        folded = self._db.changes()
        self._db.execute(f"INSERT INTO {name}({columns}) SELECT * FROM temp.folded")
        self._db.execute("DROP TABLE temp.folded")
        return folded

    def _oldest_ns(self, tables: tuple[tuple[str, str], ...]) -> int:
        """The oldest time in these tables; now if they are empty."""
        oldest = " UNION ALL ".join(f"SELECT min({column}) AS at FROM {name}" for name, column in tables)
        found = _number(self._db, f"SELECT min(at) FROM ({oldest})")
        return self._clock() if found is None else found

    def _delete_stacks(self) -> int:
        """Delete stacks of processes that ended before all stored detail: no call or sample refers to them any more."""
        begin_ns = self._oldest_ns(_DETAIL)
        if begin_ns < self._looked_until_ns + _LOOK_AGAIN_NS:
            return 0
        ended = f"SELECT process FROM ({_ENDED}) WHERE ended_ns < ?"
        chosen = f"SELECT hash FROM raw_stacks WHERE process IN ({ended}) LIMIT {_STACKS_AT_ONCE}"
        self._db.execute(f"DELETE FROM raw_stacks WHERE hash IN ({chosen})", (begin_ns,))
        deleted = self._db.changes()
        if deleted:
            self._note("raw_stacks", "removed", begin_ns, deleted)
        else:
            self._looked_until_ns = begin_ns
        return deleted

    def _delete_ended_processes(self) -> int:
        """Delete processes that ended before all stored rows, with all rows that refer to them; this is done last."""
        chosen = (
            f"SELECT process, ended_ns FROM ({_ENDED}) WHERE ended_ns < {self._oldest_ns(_KEPT)} "
            f"ORDER BY process LIMIT {self._step_rows}"
        )
        last_ns = _number(self._db, f"SELECT max(ended_ns) FROM ({chosen})")
        if last_ns is None:
            return 0
        for name in ("raw_threads", "raw_kernels", "raw_process_gpus", "raw_communicators"):
            self._db.execute(f"DELETE FROM {name} WHERE process IN (SELECT process FROM ({chosen}))")
        self._db.execute(f"DELETE FROM raw_processes WHERE process IN (SELECT process FROM ({chosen}))")
        deleted = self._db.changes()
        self._note("raw_processes", "removed", last_ns, deleted)
        return deleted

    def _note(self, name: str, kind: str, until_ns: int, rows: int) -> None:
        """Note what was pruned, in the same transaction, so that the file never holds less than it reports."""
        self._db.execute(
            "INSERT INTO raw_pruned(name, kind, until_ns, rows, noted_ns, max_db_bytes) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT(seq_base, name, kind) DO UPDATE SET until_ns = max(until_ns, excluded.until_ns), "
            "rows = rows + excluded.rows, noted_ns = excluded.noted_ns, max_db_bytes = excluded.max_db_bytes",
            (name, kind, until_ns, rows, self._clock(), self._max_db_bytes),
        )


_KEPT = (*_DETAIL, *_AGGREGATES)


def _number(db: apsw.Connection, sql: str, *values: int | str) -> int | None:
    """The number that a query answers; None where it answers NULL or no row."""
    for (value,) in db.execute(sql, values):
        assert value is None or isinstance(value, int)
        return value
    return None
