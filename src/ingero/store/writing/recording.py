"""Opens a database for one recording, and closes it in good order afterwards."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import apsw

from ingero.store.errors import (
    DirectoryError,
    MergedRecordingError,
    NotWritableError,
    OlderIngeroError,
    OtherBuildError,
    StoreError,
    writing_error,
)
from ingero.store.opening.distrust import confine, distrust, require_safe_sqlite
from ingero.store.opening.locations import give, make_folders
from ingero.store.opening.own_schema import INDEXES_AT_END, require_own_schema
from ingero.store.opening.side_files import has_log, refuse_side_files
from ingero.store.records import SessionFacts
from ingero.store.writing.migrations import Kind, kind_of, migrate
from ingero.store.writing.recorder_lock import RecorderLock
from ingero.store.writing.retention import BUSY_MS, id_span, log_bytes, log_limit_bytes, used_bytes
from ingero.store.writing.set_aside import last_written_s, set_aside
from ingero.store.writing.tables import SESSIONS, sql_text

# 2^48 is above every cgroup id seen in practice (an inode number), and leaves room for 32,000 boots and nodes.
CGROUP_BASE_STEP = 1 << 48

# Above it, making the secondary indexes at the end of each recording takes longer (> 10 s) than the scans they save.
MAX_INDEXED_EVENTS = 10_000_000

# Size of the indexes made at the end; measured: 37.
INDEX_BYTES_PER_EVENT = 40

_WAL_PAGES = 4_000  # 16 MB: a checkpoint about every two seconds at the full rate
_WAL_PART = 32  # the log may take 1/32 of the size limit until a checkpoint, where that is less
_MIN_WAL_PAGES = 64
_PAGE_BYTES = 4096
_CACHE_KIB = 16_000
_STATEMENTS = 256

Owner = tuple[int, int]  # uid, gid


class Recording:
    """A database open for writing, with its session begun. One thread at a time.

    sets_aside: a file that an earlier build recorded, and that this one cannot go on with, gets another name.
    set_aside: that name, if it did.

    Raises:
        StoreError: the file is not ours to write, another recorder has it, or it cannot be written.
    """

    def __init__(
        self,
        path: Path,
        facts: SessionFacts,
        node: str,
        owner: Owner | None,
        *,
        max_db_bytes: int = 0,
        sets_aside: bool = False,
    ) -> None:
        self.path = path
        self.set_aside: Path | None = None
        _make_folder(path, owner)
        self._lock = RecorderLock(path)
        try:
            _make_file(path, owner)
            if owner is not None:
                give(self._lock.fd, *owner)
            self.db = self._open_or_begin(owner, max_db_bytes, sets_aside=sets_aside)
            try:
                self.session, self.cgroup_base = _begin_session(self.db, path, facts, node)
            except BaseException:
                self.db.close()
                raise
        except (apsw.Error, OSError) as error:
            self._lock.release()
            raise writing_error(path, error) from error
        except BaseException:
            self._lock.release()
            raise

    def _open_or_begin(self, owner: Owner | None, max_db_bytes: int, *, sets_aside: bool) -> apsw.Connection:
        written_s = last_written_s(self.path)
        try:
            return _open(self.path, max_db_bytes)
        except (OlderIngeroError, OtherBuildError):
            if not sets_aside:
                raise
        self.set_aside = set_aside(self.path, written_s)
        _make_file(self.path, owner)
        return _open(self.path, max_db_bytes)

    def next_process(self) -> int:
        """The first process number that no row has."""
        return _number(self.db, "SELECT coalesce(max(process), 0) + 1 FROM raw_processes")

    def strings(self) -> dict[str, int]:
        """Every text stored so far with its number."""
        return {str(text): int(number) for number, text in self.db.execute("SELECT string, text FROM raw_strings")}

    def finish(self, *, max_db_bytes: int) -> None:
        """Make the indexes, give back space, and turn the file into one that can be read from anywhere.

        Only what failed for a reason other than a reader in the way is an error.

        Raises:
            StoreError: the disk refused.
        """
        try:
            if self._has_room_for_indexes(max_db_bytes):
                add_indexes(self.db)
            if max_db_bytes and self.path.stat().st_size > max_db_bytes >= used_bytes(self.db):
                list(self.db.execute("PRAGMA incremental_vacuum"))
            # Without write-ahead log a reader needs no write access to the folder; a reader in the way keeps the log.
            with suppress(apsw.BusyError):
                list(self.db.execute("PRAGMA journal_mode = delete"))
        except (apsw.Error, OSError) as error:
            raise writing_error(self.path, error) from error

    def _has_room_for_indexes(self, max_db_bytes: int) -> bool:
        """Whether there is room for indexes: they go into the log first, which a reader may keep from being reset."""
        index_bytes = id_span(self.db, "raw_events") * INDEX_BYTES_PER_EVENT
        size_bytes = used_bytes(self.db) + log_bytes(self.path) + 2 * index_bytes
        return not max_db_bytes or size_bytes <= max_db_bytes

    def close(self) -> None:
        """Close the file and let the next recorder in."""
        self.db.close()
        self._lock.release()


def add_indexes(db: apsw.Connection) -> None:
    """Add the indexes for readers, unless making them takes longer than they save."""
    if id_span(db, "raw_events") <= MAX_INDEXED_EVENTS:
        db.execute(sql_text("indexes.sql"))


def _make_folder(path: Path, owner: Owner | None) -> None:
    try:
        if path.is_dir():
            raise DirectoryError(path)
        if path.exists() and not path.is_file():  # SQLite would leave a journal beside a device
            raise NotWritableError(path, "it is not a regular file")
        make_folders(path.parent, 0o755, owner)
    except OSError as error:
        raise writing_error(path, error) from error


def _make_file(path: Path, owner: Owner | None) -> None:
    """Create the file for its owner alone (command lines may hold secrets); SQLite gives -wal and -shm its owner.

    One that is there keeps its owner: it may be any file of root, named by mistake.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    try:
        if owner is not None:
            give(descriptor, *owner)
    finally:
        os.close(descriptor)


def _connect(path: Path) -> apsw.Connection:
    require_safe_sqlite()
    refuse_side_files(path)
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=_STATEMENTS)
    try:
        distrust(db)
        confine(db, is_reading=False)
        db.set_busy_timeout(BUSY_MS)
    except apsw.Error:
        db.close()
        raise
    return db


def _open(path: Path, max_db_bytes: int) -> apsw.Connection:
    db = _connect(path)
    try:
        if kind_of(db) is Kind.EMPTY:  # elsewhere it would write into a file that may not be ours
            list(db.execute("PRAGMA auto_vacuum = incremental"))
        for setting in (f"cache_size = -{_CACHE_KIB}", "temp_store = memory"):
            list(db.execute(f"PRAGMA {setting}"))
        migrate(db, path)
        for setting in (
            "journal_mode = wal",
            "synchronous = normal",
            f"wal_autocheckpoint = {_wal_pages(max_db_bytes)}",
            f"journal_size_limit = {log_limit_bytes(max_db_bytes)}",
        ):
            list(db.execute(f"PRAGMA {setting}"))
        for name in INDEXES_AT_END:
            db.execute(f"DROP INDEX IF EXISTS {name}")
    except (apsw.Error, StoreError):
        db.close()
        raise
    return db


def _wal_pages(max_db_bytes: int) -> int:
    """Number of log pages at which a checkpoint begins: the log counts as part of the file."""
    if not max_db_bytes:
        return _WAL_PAGES
    return min(_WAL_PAGES, max(_MIN_WAL_PAGES, max_db_bytes // _WAL_PART // _PAGE_BYTES))


def _begin_session(db: apsw.Connection, path: Path, facts: SessionFacts, node: str) -> tuple[int, int]:
    if _number(db, "SELECT EXISTS (SELECT 1 FROM raw_sessions WHERE seq_base)"):
        raise MergedRecordingError(path)
    with db:
        _end_killed(db)
        session = _number(db, "SELECT coalesce(max(session), 0) + 1 FROM raw_sessions")
        cgroup_base = _number(
            db,
            "SELECT coalesce((SELECT cgroup_base FROM raw_sessions WHERE node = ?1 AND boot_id = ?2), "
            "(SELECT max(cgroup_base) + ?3 FROM raw_sessions), 0)",
            node,
            facts.boot_id,
            CGROUP_BASE_STEP,
        )
        row = SESSIONS.rows(
            1,
            session=session,
            uuid=facts.uuid,
            node=node,
            boot_id=facts.boot_id,
            machine_id=facts.machine_id,
            started_ns=facts.started_ns,
            last_seen_ns=facts.started_ns,
            kernel=facts.kernel,
            os_release=facts.os_release,
            cpu_model=facts.cpu_model,
            cpu_count=facts.cpu_count,
            memory_bytes=facts.memory_bytes,
            gpu_model=facts.gpu_model,
            gpu_driver=facts.gpu_driver,
            cuda_ver=facts.cuda_ver,
            python_ver=facts.python_ver,
            ingero_ver=facts.ingero_ver,
            agent_pid=facts.agent_pid,
            pid_filter=facts.pid_filter,
            flags=facts.flags,
            options=json.dumps(facts.options),
            not_traced=json.dumps(facts.not_traced),
            cgroup_base=cgroup_base,
        )
        db.executemany(SESSIONS.insert_sql(), row)
    return session, cgroup_base


def _end_killed(db: apsw.Connection) -> None:
    """End the sessions of a killed recorder at the time they were last seen: its lock is free."""
    db.execute("UPDATE raw_sessions SET stopped_ns = last_seen_ns, stop_reason = 'killed' WHERE stopped_ns IS NULL")
    db.execute(  # nobody has ended what it had found, either
        "UPDATE raw_incidents SET end_ns = max(start_ns, (SELECT stopped_ns FROM raw_sessions s "
        "WHERE s.session = raw_incidents.session)) WHERE end_ns IS NULL"
    )


def finish_killed(path: Path, owners: Collection[int]) -> bool:
    """End the recording that a killed recorder left, so that it is one file; returns whether there was one.

    Indexes are left out, so that starting does not wait. owners: user ids that may own the file.

    Raises:
        StoreError: it is no recording of this build, or cannot be written.
    """
    try:
        about = path.lstat()
    except OSError:
        return False
    if not stat.S_ISREG(about.st_mode) or about.st_uid not in owners or not has_log(path):
        return False
    lock = RecorderLock(path)
    try:
        db = _connect(path)
        try:
            require_own_schema(db, path)
            with db:
                _end_killed(db)
            with suppress(apsw.BusyError):  # somebody reads it: the next recording into it does the rest
                list(db.execute("PRAGMA journal_mode = delete"))
        finally:
            db.close()
    except (apsw.Error, OSError) as error:
        raise writing_error(path, error) from error
    finally:
        lock.release()
    return True


def _number(db: apsw.Connection, sql: str, *values: str | int) -> int:
    (value,) = next(iter(db.execute(sql, values)))
    assert isinstance(value, int)
    return value
