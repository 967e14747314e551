"""Opens a database for reading: never written, never migrated, also from read-only storage."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import apsw

from ingero.store import narrowing, views
from ingero.store.errors import (
    DirectoryError,
    EmptyDatabaseError,
    ForeignDatabaseError,
    NoDatabaseError,
    NotADatabaseError,
    NotReadableError,
    reading_error,
)
from ingero.store.older import legacy
from ingero.store.opening.distrust import StepLimit, confine, distrust, require_safe_sqlite
from ingero.store.opening.log_missing import missing_end
from ingero.store.opening.own_schema import require_tables
from ingero.store.opening.side_files import has_log, refuse_side_files
from ingero.store.writing.migrations import Kind, check_version, kind_of

_BUSY_MS = 2_000
_FLAGS = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
_MEMORY_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A read-only connection and what kind of file is behind it. Its views are this product's, as temporary ones.

    limit: ends statements that take more steps than the file can need; a caller with its own guard lifts it.

    older_version: "" for a recording of this product, else the schema version an older Ingero gave ("0.9").
    has_exact_totals: whether op_stats holds the exact counts.
    missing_end: what a missing log held, "" for nothing.
    """

    db: apsw.Connection
    limit: StepLimit
    version: int
    older_version: str
    has_exact_totals: bool
    missing_end: str = ""


def open_database(path: Path, *, node: str | None = None) -> Opened:
    """Open a recording of this product or of Ingero 0.x. node: the connection shows nothing of other nodes; None: all.

    Raises:
        StoreError: there is no such file, it is not a recording, is damaged, may not be read, or is too new.
    """
    require_safe_sqlite()
    refuse_other_files(path)
    refuse_side_files(path)
    try:
        kind = kind_of_file(path)
        if kind is Kind.RECORDING:
            return _open_recording(path, node)
        if kind is Kind.OLDER_INGERO:
            return _open_older(path, node)
        if kind is Kind.EMPTY:
            raise EmptyDatabaseError(path)
    except (apsw.Error, UnicodeDecodeError) as error:
        raise reading_error(path, error) from error
    raise ForeignDatabaseError(path)


def refuse_other_files(path: Path) -> None:
    """Refuse what is no regular file: SQLite gives one error for all such files, and waits for ever on a named pipe."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise NoDatabaseError(path) from None
    except OSError as error:
        raise NotReadableError(path, os.strerror(error.errno or 0)) from error
    if stat.S_ISDIR(mode):
        raise DirectoryError(path)
    if not stat.S_ISREG(mode):
        raise NotADatabaseError(path, "it is not a regular file")


def kind_of_file(path: Path) -> Kind:
    """Which product wrote a file. Unlike a plain read-only connection in write-ahead mode, this makes no side files."""
    db = connect(path) if has_log(path) else _try(_uri(path, is_immutable=True))
    try:
        return kind_of(db)
    finally:
        db.close()


def _open_recording(path: Path, node: str | None) -> Opened:
    db = connect(path)
    try:
        limit = StepLimit(db, stored_bytes(path))
        version = check_version(db, path)
        views.make_temporary(db, are_all_there=require_tables(db, path), version=version)
        if node is not None:
            narrowing.narrow(db, node)
        older_version, is_exact = _origin(db)
        missing = missing_end(path, db)
        db.execute("PRAGMA query_only = 1")
        confine(db, is_reading=True)
    except BaseException:
        db.close()
        raise
    return Opened(
        db=db,
        limit=limit,
        version=version,
        older_version=older_version,
        has_exact_totals=is_exact,
        missing_end=missing,
    )


def _origin(db: apsw.Connection) -> tuple[str, bool]:
    """The version of Ingero 0.x that recorded all that is shown, "" if not all; and whether totals are exact.

    The parts of a merged file from such versions have no exact totals either.
    """
    if not any(db.execute("SELECT name FROM pragma_table_info('raw_sessions') WHERE name = 'older_version'")):
        return "", True  # of a build that could not merge
    ((least, most, is_exact),) = db.execute(
        "SELECT min(older_version), max(older_version), coalesce(min(has_exact_totals), 1) FROM raw_sessions"
    )
    return str(most or "") if least else "", bool(is_exact)


def connect(path: Path) -> apsw.Connection:
    """A connection that reads and trusts nothing in the file; `refuse_side_files` comes before it.

    Raises:
        NotReadableError: the log beside it cannot be read here.
        apsw.Error: as SQLite says.
    """
    try:
        return _try(_uri(path, is_immutable=False))
    except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
        # A file in write-ahead mode needs shared memory beside it, which read-only storage cannot give. Nobody can be
        # writing there, but what a log beside it holds would be missed.
        if os.access(path.parent, os.W_OK) or not os.access(path, os.R_OK):
            raise
        if has_log(path):
            raise NotReadableError(path, "its write-ahead log cannot be read here") from error
        return _try(_uri(path, is_immutable=True))


def _try(uri: str) -> apsw.Connection:
    db = apsw.Connection(uri, flags=_FLAGS)
    try:
        distrust(db)
        db.set_busy_timeout(_BUSY_MS)
        list(db.execute("SELECT count(*) FROM sqlite_schema"))
    except apsw.Error:
        db.close()
        raise
    return db


def _open_older(path: Path, node: str | None) -> Opened:
    db = apsw.Connection(":memory:", flags=_MEMORY_FLAGS)
    try:
        distrust(db)
        limit = StepLimit(db, stored_bytes(path))
        db.set_busy_timeout(_BUSY_MS)
        is_exact = legacy.attach(db, source_uri(path), path)
        if node is not None:
            narrowing.narrow(db, node)
        db.execute("PRAGMA query_only = 1")
        confine(db, is_reading=True)
    except BaseException:
        db.close()
        raise
    version = legacy.version_of(db) or "0"
    return Opened(db=db, limit=limit, version=0, older_version=version, has_exact_totals=is_exact)


def stored_bytes(path: Path) -> int:
    """How many bytes of a file are on disk: a sparse file may claim terabytes."""
    return path.stat().st_blocks * 512


def source_uri(path: Path) -> str:
    """The URI by which another connection attaches a database to read it, without leaving files beside it."""
    return _uri(path, is_immutable=not has_log(path))


def _uri(path: Path, *, is_immutable: bool) -> str:
    return f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if is_immutable else ''}"
