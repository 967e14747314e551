"""One recorder per database: an advisory lock on a file beside it. Readers never look at it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ingero.store.errors import NotWritableError, RecorderRunningError


class RecorderLock:
    """Holds `<database>.lock` from construction to `release`; the kernel releases it when the process dies.

    Not taken on the database file itself: closing a descriptor of it would drop SQLite's own locks (POSIX locks belong
    to the process, not to the descriptor).

    Raises:
        RecorderRunningError: another process, or another recorder in this one, holds it.
        NotWritableError: the lock file cannot be made.
    """

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(f"{database.name}.lock")
        while True:
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise NotWritableError(database, f"{self._path.name}: {error.strerror}") from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                owner = os.read(fd, 32).decode("ascii", "replace").strip()
                os.close(fd)
                raise RecorderRunningError(database, owner) from error
            if self._is_still_at_path(fd):
                break
            os.close(fd)  # its last owner removed it between our open and our lock
        os.ftruncate(fd, 0)
        os.write(fd, str(os.getpid()).encode())
        self.fd = fd

    def _is_still_at_path(self, fd: int) -> bool:
        try:
            there = self._path.lstat()
        except FileNotFoundError:
            return False
        ours = os.fstat(fd)
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def release(self) -> None:
        """Remove the file and let go of the lock."""
        self._path.unlink(missing_ok=True)
        os.close(self.fd)
