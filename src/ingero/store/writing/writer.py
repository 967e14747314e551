"""Writer of a recording's database: a bounded queue in front of one writing thread."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import TracebackType

import apsw
import numpy as np
import numpy.typing as npt

from ingero.store.arrays.sync_interval_digest import digest_rows
from ingero.store.errors import LogHeldError, StoreError, writing_error
from ingero.store.opening.log_readers import log_readers
from ingero.store.records import SessionFacts
from ingero.store.writing import tables
from ingero.store.writing.interning import Interner
from ingero.store.writing.recording import Owner, Recording
from ingero.store.writing.retention import Retention, log_bytes
from ingero.store.writing.tables import Row, Table
from ingero.units import format_bytes

log = logging.getLogger(__name__)

# 2.5 s at 40,000 rows/s, which outlasts a checkpoint on a slow disk. Full of events (330 bytes a row, as columns) it
# takes 33 MB, full of sync intervals (450 bytes) 45 MB; as Python's objects it were five times as much.
QUEUE_ROWS = 100_000

# Of these there may be more than the disk takes; they leave a sixth of the queue to sums and processes.
_BULK = frozenset({tables.EVENTS.name, tables.OFFCPU.name, tables.SYNC_INTERVALS.name})

# A kill loses at most this plus the commit itself.
_COMMIT_INTERVAL_S = 0.5

# Commit early above it: large enough that the commit costs nothing per row, small enough to stay in the page cache.
_COMMIT_ROWS = 20_000


# SQLite runs without the interpreter lock, so each statement hands it over; with CPython's 5 ms a busy second thread
# holds the inserts down to a few thousand rows a second.
_SWITCH_INTERVAL_S = 0.0005

# What SQLite or apsw says about rows that no retry will make right.
_REFUSED = (apsw.ConstraintError, apsw.MismatchError, apsw.BindingsError, apsw.TooBigError)
_REFUSED_VALUES = (TypeError, ValueError, OverflowError)

# Of the time between two commits, what trimming may take. Rows that wait get their turn after 60 ms and one step.
_TRIM_S = _COMMIT_INTERVAL_S / 2
_URGENT_TRIM_S = 0.06

# At the end no rows wait, but the user does.
_LAST_TRIM_S = 5.0

# Processes whose number is kept, those asked for longest ago go first: far more than may be traced at once.
PROCESSES_KNOWN = 2048

# Rows of numpy's numbers become Python's so many at a time.
_INSERTED_AT_ONCE = 2048

# What a commit writes into the log at most: the last pages of all tables and indexes, and 150 to 350 bytes for a row.
_COMMIT_BYTES, _ROW_BYTES = 1 << 20, 400

_Batch = dict[str, tuple[Table, list[Sequence[Row]]]]


class Writer:
    """Records one session into a database; use it as a context manager.

    `append` never blocks: what the queue does not hold is counted in `drops`. While the disk refuses writes, `error`
    says why, the rows wait in the queue and are tried again; it is None again once they are stored.

    path: the database, made with its folders where missing. node: the name of this machine in event ids.
    max_db_bytes: limit of the file and its log, 0 = none. owner: uid and gid that get the files. clock: unix ns.
    sets_aside: a file of an earlier build, which cannot be gone on with, gets another name: `set_aside`, then.
    """

    def __init__(
        self,
        path: Path,
        *,
        session: SessionFacts,
        node: str,
        max_db_bytes: int = 0,
        owner: Owner | None = None,
        sets_aside: bool = False,
        queue_rows: int = QUEUE_ROWS,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.path = path
        self._facts = session
        self._node = node
        self._max_db_bytes = max_db_bytes
        self._owner = owner
        self._sets_aside = sets_aside
        self._queue_rows = queue_rows
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: list[tuple[Table, Sequence[Row]]] = []
        self._waiting_rows = 0  # in the queue or in a batch that is not committed
        self._appended = 0  # calls of append and flush
        self._committed = 0  # of them, stored
        self._attempts = 0
        self._is_urgent = False
        self._is_closing = False
        self._has_ended = False
        self._lost: Counter[tuple[str, str]] = Counter()
        self._reported: Counter[tuple[str, str]] = Counter()
        self._error: StoreError | None = None
        self._trim_trouble = ""
        self._has_warned_of_readers = False
        self._stop_reason = "stopped"
        self._processes: OrderedDict[tuple[int, int], int] = OrderedDict()

    def __enter__(self) -> Writer:
        """Open the database and begin the session.

        Raises:
            StoreError: the file is not ours to write, another recorder has it, or it cannot be written.
        """
        self._recording = Recording(
            *(self.path, self._facts, self._node, self._owner),
            max_db_bytes=self._max_db_bytes,
            sets_aside=self._sets_aside,
        )
        self._retention = Retention(self._recording.db, self.path, self._max_db_bytes, clock=self._clock)
        self._interner = Interner(self._recording.strings())
        self._next_process = self._recording.next_process()
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(_SWITCH_INTERVAL_S, self._switch_interval_s))
        self._thread = threading.Thread(target=self._run, name="ingero-writer", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, KeyboardInterrupt):
            self._stop_reason = f"error: {error}"
        self.close()

    @property
    def session(self) -> int:
        """Number of this session in the file; value of every column `session`."""
        return self._recording.session

    @property
    def node(self) -> str:
        """Name of this machine in event ids."""
        return self._node

    @property
    def cgroup_base(self) -> int:
        """The number added to the kernel's cgroup ids; see `cgroup_keys`."""
        return self._recording.cgroup_base

    @property
    def set_aside(self) -> Path | None:
        """The new name of an earlier build's file that was at `path`."""
        return self._recording.set_aside

    @property
    def error(self) -> StoreError | None:
        """Why rows are not being stored right now."""
        return self._error

    @property
    def trim_steps(self) -> int:
        """Number of steps in which the size limit was enforced."""
        return self._retention.steps

    @property
    def longest_trim_s(self) -> float:
        """The longest that rows have waited for the size limit's work."""
        return self._retention.longest_step_s

    @property
    def stop_reason(self) -> str:
        """Column `stop_reason` of the session; set it before closing."""
        return self._stop_reason

    @stop_reason.setter
    def stop_reason(self, reason: str) -> None:
        self._stop_reason = reason

    def cgroup_keys(self, cgroup_ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """The kernel's cgroup ids as columns `cgroup_id` hold them; 0 stays 0."""
        ids = cgroup_ids.astype(np.int64)
        return np.where(ids == 0, 0, ids + self.cgroup_base)

    def intern(self, text: str) -> int:
        """The number of a text, for columns that say "string"."""
        return self._interner.intern(text)

    def process_id(self, pid: int, start_ns: int) -> int:
        """The number of a process (columns `process`), the same each time; its row is the caller's to append."""
        key = (pid, start_ns)
        with self._changed:
            if key not in self._processes:
                self._processes[key] = self._next_process
                self._next_process += 1
                if len(self._processes) > PROCESSES_KNOWN:
                    self._processes.popitem(last=False)
            self._processes.move_to_end(key)
            return self._processes[key]

    def append(self, table: Table, rows: Sequence[Row]) -> int:
        """Queue rows, in the order of `table.columns`; answers how many the queue took. Never waits for the disk."""
        most_rows = self._queue_rows if table.name in _BULK else self._queue_rows * 6 // 5
        with self._changed:
            room = max(0, most_rows - self._waiting_rows)
            taken = rows if len(rows) <= room else rows[:room]
            if len(taken) < len(rows):
                reason = "write failed" if self._error else "queue full"
                self._lost[table.name, reason] += len(rows) - len(taken)
            if taken:
                self._queue.append((table, taken))
                self._appended += 1
                self._waiting_rows += len(taken)
                if self._waiting_rows >= _COMMIT_ROWS and not self._is_urgent and self._error is None:
                    self._is_urgent = True
                    self._changed.notify_all()
            return len(taken)

    def drops(self) -> dict[tuple[str, str], int]:
        """Rows lost so far by (table, reason)."""
        with self._changed:
            lost = dict(self._lost)
        if self._interner.refused:
            lost[tables.STRINGS.name, "too many names"] = self._interner.refused
        return lost

    def flush(self) -> None:
        """Wait until everything queued so far is committed.

        Raises:
            StoreError: an attempt made meanwhile failed; the rows stay queued.
        """
        with self._changed:
            self._appended += 1
            target, attempts = self._appended, self._attempts
            self._is_urgent = True
            self._changed.notify_all()
            self._changed.wait_for(
                # The attempt that runs now began before this call, so its failure does not count.
                lambda: (
                    self._committed >= target or self._has_ended or bool(self._error and self._attempts > attempts + 1)
                )
            )
            if self._committed < target:
                raise self._error or StoreError("the database is closed")

    def position(self) -> int:
        """Number of rows handed over so far; `is_stored` tells when all of them are in the file."""
        with self._changed:
            return self._appended

    def is_stored(self, position: int) -> bool:
        """Whether all rows up to a position are in the file. Never waits."""
        with self._changed:
            return self._committed >= position

    def close(self) -> None:
        """Store what is queued, end the session, make the indexes. Whatever could not be stored is in `drops`."""
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()
        sys.setswitchinterval(self._switch_interval_s)

    def _run(self) -> None:
        try:
            self._write_until_closed()
        except Exception as error:  # a bug; recording must go on and say so
            log.exception("the database writer stopped")
            self._fail(StoreError(f"the database writer stopped: {error}", hint="please report this"))
        finally:
            self._recording.close()
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _write_until_closed(self) -> None:
        batch: _Batch = {}
        is_closing = is_trimming = False
        while not is_closing:
            wait_s = 0 if is_trimming else _COMMIT_INTERVAL_S
            with self._changed:
                self._changed.wait_for(lambda: self._is_urgent or self._is_closing, timeout=wait_s)
                is_closing, self._is_urgent = self._is_closing, False
                appended = self._appended
                taken, self._queue = self._queue, []
            for table, rows in taken:
                batch.setdefault(table.name, (table, []))[1].append(rows)
            if self._store(batch, appended, is_last=is_closing):
                batch = {}
                is_trimming = self._keep_limit(_LAST_TRIM_S if is_closing else _TRIM_S)
            else:
                is_trimming = False  # the disk takes nothing; try again at the usual time
        for table, parts in batch.values():
            self._lost[table.name, "write failed"] += _count(parts)
        # the end and the dropped data are small and may find room where the rows have not
        if not batch or self._commit({}, is_last=True) is None:
            self._finish()

    def _store(self, batch: _Batch, appended: int, *, is_last: bool) -> bool:
        """Commit a batch; false if it has to be tried again."""
        strings = self._interner.take_new()
        if strings:
            batch.setdefault(tables.STRINGS.name, (tables.STRINGS, []))[1].append(strings)
        stored, error = self._commit_all(batch, is_last=is_last)
        with self._changed:
            self._attempts += 1
            self._waiting_rows -= stored
            if error is None:
                self._committed = appended
            self._say(error)
            self._changed.notify_all()
        return error is None

    def _commit_all(self, batch: _Batch, *, is_last: bool) -> tuple[int, StoreError | None]:
        """Commit a batch; stored rows are taken out of it. Returns their number.

        With a size limit it is done in parts: a long queue would make a log of its size.
        """
        stored = 0
        while True:
            part = _first_rows(batch, _COMMIT_ROWS) if self._max_db_bytes else dict(batch)
            rest, names = _without(batch, part), set(part)
            error = self._commit(part, is_last=is_last and not rest)
            if error is not None:
                for name in names.difference(part):  # refused, and counted as lost
                    batch.pop(name)
                    batch.update({name: rest[name]} if name in rest else {})
                return stored, error
            stored += sum(_count(parts) for table, parts in part.values() if table is not tables.STRINGS)
            batch.clear()
            batch.update(rest)
            if not batch:
                return stored, None
            self._make_room()

    def _commit(self, batch: _Batch, *, is_last: bool) -> StoreError | None:
        db = self._recording.db
        if batch and not self._has_room(batch):
            return (
                self._error
                if isinstance(self._error, LogHeldError)
                else LogHeldError(self.path, log_readers(self.path))
            )
        while True:
            refused: Table | None = None
            try:
                db.execute("BEGIN IMMEDIATE")
                for table, parts in batch.values():
                    refused = table
                    self._insert(db, table, parts)
                refused = None
                self._end_of_commit(db, is_last=is_last)
                db.execute("COMMIT")
            except (*_REFUSED, *_REFUSED_VALUES) as error:
                _roll_back(db)
                if refused is None:
                    raise
                self._refuse(batch, refused, error)
            except apsw.Error as error:
                _roll_back(db)
                return writing_error(self.path, error)
            else:
                return None

    def _insert(self, db: apsw.Connection, table: Table, parts: list[Sequence[Row]]) -> None:
        for rows in _some_at_a_time(parts):
            _insert(db, table, rows)
            if table is tables.SYNC_INTERVALS:
                _insert(db, tables.SYNC_INTERVAL_DIGEST, digest_rows(rows, self._interner.text_of))

    def _refuse(self, batch: _Batch, table: Table, error: Exception) -> None:
        count = _count(batch.pop(table.name)[1])
        log.error("%d rows of %s refused: %s", count, table.name, error)
        with self._changed:
            self._lost[table.name, f"refused: {error}"] += count
            self._waiting_rows -= count

    def _end_of_commit(self, db: apsw.Connection, *, is_last: bool) -> None:
        """Write the session's heartbeat or end, and rows dropped on the way here, in the same transaction."""
        now = self._clock()
        db.execute("UPDATE raw_sessions SET last_seen_ns = ? WHERE session = ?", (now, self.session))
        if is_last:
            db.execute(
                "UPDATE raw_sessions SET stopped_ns = ?, stop_reason = ? WHERE session = ?",
                (now, self._stop_reason, self.session),
            )
        lost = Counter(self.drops())
        growth = (lost - self._reported).items()
        reasons, counts = [f"{table}: {why}" for (table, why), _ in growth], [count for _, count in growth]
        rows = tables.DROPS.rows(
            len(growth), session=self.session, start_ns=now, counter="store_rows_lost", reason=reasons, count=counts
        )
        _insert(db, tables.DROPS, rows)
        self._reported = lost

    def _has_room(self, batch: _Batch) -> bool:
        rows = sum(_count(parts) for _, parts in batch.values())
        try:
            return self._retention.has_room(_COMMIT_BYTES + _ROW_BYTES * rows)
        except apsw.Error:
            return True  # what is wrong with the file, the commit says

    def _keep_limit(self, limit_s: float) -> bool:
        """Trim in short steps for a while, or until rows are waiting; true while there is more to do."""
        begin = time.monotonic()
        try:
            self._retention.limit_log()
            self._warn_of_readers()
            while self._retention.step():
                spent_s = time.monotonic() - begin
                if spent_s > (_URGENT_TRIM_S if self._is_urgent else limit_s):
                    return True
        except apsw.Error as error:
            _roll_back(self._recording.db)
            self._warn_of_trimming(writing_error(self.path, error))
        return False

    def _make_room(self) -> None:
        """Prune as much as the limit needs, between two parts of a long queue."""
        begin = time.monotonic()
        while self._keep_limit(_LAST_TRIM_S) and time.monotonic() - begin < _LAST_TRIM_S:
            pass

    def _warn_of_readers(self) -> None:
        """Warn once about readers that keep the log from being reset, until it was."""
        if not self._retention.is_log_held:
            self._has_warned_of_readers = False
        elif not self._has_warned_of_readers:
            self._has_warned_of_readers = True
            log.warning(
                "%s-wal has grown to %s and grows on, because %s is in the middle of reading %s",
                *(self.path, format_bytes(log_bytes(self.path)), log_readers(self.path) or "somebody", self.path.name),
            )

    def _warn_of_trimming(self, error: StoreError) -> None:
        if str(error) != self._trim_trouble:
            self._trim_trouble = str(error)
            log.warning("the size limit is not being kept: %s; hint: %s", error, error.hint)

    def _say(self, error: StoreError | None) -> None:
        """Tell the user once that rows are not being stored, and once that they are again."""
        before, self._error = self._error, error
        if error is not None and (before is None or str(before) != str(error)):
            log.warning("%s; tracing goes on, rows that find no room are counted as lost; hint: %s", error, error.hint)
        elif error is None and before is not None:
            log.warning("%s is being written again", self.path)

    def _finish(self) -> None:
        try:
            self._recording.finish(max_db_bytes=self._max_db_bytes)
        except StoreError as error:
            self._fail(error)

    def _fail(self, error: StoreError) -> None:
        with self._changed:
            self._error = error
            self._waiting_rows = 2 * self._queue_rows  # nothing is taken any more


def _count(parts: Sequence[Sequence[Row]]) -> int:
    return sum(map(len, parts))


def _first_rows(batch: _Batch, most: int) -> _Batch:
    """The first rows of a batch, as many as that, texts first: others name them by their numbers."""
    part: _Batch = {}
    for name, (table, parts) in sorted(batch.items(), key=lambda item: item[0] != tables.STRINGS.name):
        for rows in parts:
            if most > 0:
                part.setdefault(name, (table, []))[1].append(rows if len(rows) <= most else rows[:most])
                most -= len(rows)
    return part


def _without(batch: _Batch, part: _Batch) -> _Batch:
    """The rows of a batch after its first rows."""
    rest: _Batch = {}
    for name, (table, parts) in batch.items():
        skipped = _count(part[name][1]) if name in part else 0
        for rows in parts:
            if skipped < len(rows):
                rest.setdefault(name, (table, []))[1].append(rows[skipped:] if skipped else rows)
            skipped = max(0, skipped - len(rows))
    return rest


def _some_at_a_time(parts: Sequence[Sequence[Row]]) -> Iterator[list[Row]]:
    waiting: list[Row] = []
    for rows in parts:
        for begin in range(0, len(rows), _INSERTED_AT_ONCE):
            waiting.extend(rows[begin : begin + _INSERTED_AT_ONCE])
            if len(waiting) >= _INSERTED_AT_ONCE:
                yield waiting
                waiting = []
    if waiting:
        yield waiting


def _insert(db: apsw.Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert with as few statements as possible: ever smaller ones for the rest, all of them kept compiled."""
    start, size = 0, table.rows_per_statement
    while start < len(rows):
        statements = (len(rows) - start) // size
        if statements:
            db.executemany(table.insert_sql(size), _grouped(rows, start, size, statements))
            start += statements * size
        size = max(1, size // 8)


def _grouped(rows: Sequence[Row], start: int, size: int, statements: int) -> Iterator[Row]:
    for begin in range(start, start + statements * size, size):
        yield tuple(chain.from_iterable(rows[begin : begin + size]))


def _roll_back(db: apsw.Connection) -> None:
    with suppress(apsw.Error):  # the disk that refused the commit may refuse this, too; SQLite then rolls back itself
        if db.in_transaction:
            db.execute("ROLLBACK")
