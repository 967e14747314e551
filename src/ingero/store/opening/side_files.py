"""Checks files beside a database before SQLite opens it: SQLite would wait on a pipe and trust a journal."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ingero.store.errors import HostileDatabaseError, NotReadableError

_SUFFIXES = ("-journal", "-wal", "-shm")

# The end of a journal that belongs to several databases at once (SQLite, pager.c, writeSuperJournal): the name of
# another file, its length, its sum, and this. Rolling back such a journal deletes the file that it names.
_MAGIC = bytes.fromhex("d9d505f920a163d7")


def refuse_side_files(path: Path) -> None:
    """Refuse files beside a database that would block its reader or make SQLite touch others.

    Raises:
        HostileDatabaseError: one is not a regular file, or a journal names another file.
        NotReadableError: one cannot be looked at.
    """
    for suffix in _SUFFIXES:
        beside = path.with_name(f"{path.name}{suffix}")
        try:
            status = beside.lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise NotReadableError(path, f"{beside.name}: {os.strerror(error.errno or 0)}") from error
        if not stat.S_ISREG(status.st_mode):
            raise HostileDatabaseError(path, f"{beside.name} beside it is not a regular file")
        if suffix == "-journal" and _names_another_file(beside):
            raise HostileDatabaseError(path, f"{beside.name} beside it names another file, which would be deleted")


def has_log(path: Path) -> bool:
    """Whether a non-empty write-ahead log lies beside a database."""
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0


def _names_another_file(journal: Path) -> bool:
    try:
        descriptor = os.open(journal, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False  # SQLite cannot read it either: a reader cannot, and a recorder is root
    try:
        end = max(0, os.fstat(descriptor).st_size - len(_MAGIC))
        return os.pread(descriptor, len(_MAGIC), end) == _MAGIC and end > 0
    finally:
        os.close(descriptor)
