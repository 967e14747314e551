"""The file that is merged into: beside its place until it is whole, and then in it at once."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from ingero.errors import IngeroError
from ingero.store.distrust import confine, distrust
from ingero.store.errors import writing_error
from ingero.store.migrations import migrate
from ingero.store.own_schema import INDEXES_AT_END, index_texts, session_indexes
from ingero.store.recording import MAX_INDEXED_EVENTS
from ingero.store.sql_text import quoted

_CACHE_KIB = 32_000
_SIDE_FILES = ("", "-journal", "-wal", "-shm")


class MergeOutputError(IngeroError):
    """The file to write is there, is being written, or cannot be."""


@contextmanager
def new_recording(path: Path, *, has_indexes: bool = True) -> Iterator[Path]:
    """An empty recording under another name, without indexes; it becomes `path` when all went well, else it vanishes.

    has_indexes: whether they are made at the end. Whoever was killed while writing left one: it goes.

    Raises:
        MergeOutputError: there is such a file, another merge is writing it, or its folder takes none.
    """
    if os.path.lexists(path):
        raise MergeOutputError(f"{path} exists already", hint="name a file that does not exist with -o")
    partial = path.with_name(f".{path.name}.merging")
    try:
        lock = os.open(
            path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
    except OSError as error:
        raise _failed(path, error) from error
    try:
        with _only_writer(lock, path):
            _remove(partial)
            try:
                _create(partial)
                yield partial
                _finish(partial, has_indexes=has_indexes)
                _put_in_place(partial, path)
            except OSError as error:
                raise _failed(path, error) from error
            except apsw.Error as error:
                raise writing_error(partial, error) from error
            finally:
                _remove(partial)
    finally:
        os.close(lock)


@contextmanager
def _only_writer(lock: int, path: Path) -> Iterator[None]:
    place = path.with_name(f".{path.name}.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), place.lstat()):  # of a merge that has just ended
            raise BlockingIOError
    except (BlockingIOError, FileNotFoundError):
        raise MergeOutputError(f"another merge is writing {path}", hint="wait for it, or name another file") from None
    try:
        yield
    finally:
        place.unlink(missing_ok=True)


def _create(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    db = _open(path)
    try:
        migrate(db, path)
        for name in index_texts():
            db.execute(f"DROP INDEX IF EXISTS {quoted(name)}")
        db.execute("CREATE INDEX merging_text ON raw_strings(text)")
    finally:
        db.close()


def _finish(path: Path, *, has_indexes: bool) -> None:
    """The indexes at once: made row by row, they would take longer than the rows."""
    db = _open(path)
    try:
        db.execute("DROP INDEX merging_text")
        if not has_indexes:
            return
        ((events,),) = db.execute("SELECT count(*) FROM raw_events")
        for name, text in index_texts().items():
            if name not in INDEXES_AT_END or int(events) <= MAX_INDEXED_EVENTS:
                db.execute(text)
        for text in session_indexes().values():
            db.execute(text)
    finally:
        db.close()


def _open(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    distrust(db)
    confine(db, is_reading=False)
    for setting in ("journal_mode = memory", "synchronous = off", f"cache_size = -{_CACHE_KIB}"):
        list(db.execute(f"PRAGMA {setting}"))
    return db


def _put_in_place(partial: Path, path: Path) -> None:
    """On the disk first, then under its name, which nobody may have taken meanwhile."""
    _sync(partial, os.O_RDWR)
    try:
        os.link(partial, path)
    except FileExistsError:
        raise MergeOutputError(f"{path} exists already", hint="name a file that does not exist with -o") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        partial.rename(path)  # a file system without links
    with suppress(OSError):  # some network file systems refuse it for folders
        _sync(path.parent, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(partial: Path) -> None:
    for suffix in _SIDE_FILES:
        partial.with_name(f"{partial.name}{suffix}").unlink(missing_ok=True)


def _failed(path: Path, error: OSError) -> MergeOutputError:
    return MergeOutputError(
        f"{path} cannot be written: {os.strerror(error.errno or 0)}", hint="name a file in a folder with room"
    )
