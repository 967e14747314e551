"""Writes a new database beside its final place, and moves it there when it is complete."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from ingero.errors import IngeroError
from ingero.store.errors import writing_error

_SIDE_FILES = ("", "-journal", "-wal", "-shm")


class NewFileError(IngeroError):
    """The file to write is there, is being written, or cannot be."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """An empty file under another name, locked by its writer; it becomes `path` on success, else it is deleted.

    A file left by a killed writer is deleted.

    Raises:
        NewFileError: there is such a file, somebody else is writing it, or its folder takes none.
        NotWritableError: SQLite could not write it.
    """
    if os.path.lexists(path):
        raise NewFileError(f"{path} exists already", hint="name a file that does not exist")
    partial = path.with_name(f".{path.name}.partial")
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
                os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
                yield partial
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
        if not os.path.samestat(os.fstat(lock), place.lstat()):  # of one that has just ended
            raise BlockingIOError
    except (BlockingIOError, FileNotFoundError):
        raise NewFileError(f"another ingero is writing {path}", hint="wait for it, or name another file") from None
    try:
        yield
    finally:
        place.unlink(missing_ok=True)


def _put_in_place(partial: Path, path: Path) -> None:
    """Sync the file to disk, then give it its name, which must still be free."""
    _sync(partial, os.O_RDWR)
    try:
        os.link(partial, path)
    except FileExistsError:
        raise NewFileError(f"{path} exists already", hint="name a file that does not exist") from None
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


def _failed(path: Path, error: OSError) -> NewFileError:
    return NewFileError(
        f"{path} cannot be written: {os.strerror(error.errno or 0)}", hint="name a file in a folder with room"
    )
