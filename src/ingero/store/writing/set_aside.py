"""Renames a file that this build cannot continue, so that a new recording can begin in its place."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

import apsw

from ingero.store.errors import InUseError, NotWritableError
from ingero.store.opening.distrust import distrust
from ingero.store.opening.log_readers import log_readers
from ingero.store.opening.side_files import refuse_side_files
from ingero.store.writing.retention import BUSY_MS

_SIDE_FILES = ("-wal", "-shm")
_LAST_SECOND = 253_402_300_799  # of the year 9999: a file may claim a later one
_MAX_PER_DAY = 1000
_STEP_S = 0.1


def last_written_s(path: Path) -> float:
    """When a database or its log was last written: before it is opened, which may write its log into it."""
    times = [0.0]
    for name in (path.name, f"{path.name}-wal"):
        with suppress(OSError):
            times.append(path.with_name(name).stat().st_mtime)
    return max(times)


def set_aside(path: Path, written_s: float) -> Path:
    """Rename a database that is no longer open here; returns its new name, which no other file had.

    The caller holds its recorder's lock. written_s: the time that gives the day in the new name.

    Raises:
        InUseError: another program has it open, and would go on with files of the old name.
        NotWritableError: it is no file of its own, or all names of that day are taken.
        OSError: the folder does not take the name.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise NotWritableError(path, "it is a link to a recording of another build")
    _require_alone(path)
    day = time.strftime("%Y-%m-%d", time.gmtime(min(max(written_s, 0), _LAST_SECOND)))
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number in range(1, _MAX_PER_DAY + 1):
            name = f"{path.stem}.until-{day}{f'-{number}' if number > 1 else ''}{path.suffix}"
            if _rename(folder, path.name, name):
                with suppress(OSError):  # some network file systems refuse it for folders
                    os.fsync(folder)
                return path.with_name(name)
    finally:
        os.close(folder)
    raise NotWritableError(path, f"{_MAX_PER_DAY} recordings of {day} lie beside it")


def _require_alone(path: Path) -> None:
    """Require that no other program has the database open: the last one to close it merges and removes the log.

    Without a log there is one file, which is renamed at once.
    """
    end = time.monotonic() + BUSY_MS / 1000
    while any(path.with_name(f"{path.name}{suffix}").exists() for suffix in _SIDE_FILES):
        if time.monotonic() > end:
            raise InUseError(path, log_readers(path))
        time.sleep(_STEP_S)
        refuse_side_files(path)
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            distrust(db)
            list(db.execute("PRAGMA schema_version"))
        finally:
            db.close()


def _rename(folder: int, old: str, new: str) -> bool:
    """Rename within an open folder, even if its name changes meanwhile; false if the new name is taken."""
    try:
        os.link(old, new, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):  # of file systems without links
            raise
        if _is_taken(folder, new):
            return False
        os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        os.unlink(old, dir_fd=folder)
    return True


def _is_taken(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
