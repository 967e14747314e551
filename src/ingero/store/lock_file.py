"""A file that one process holds at a time, with a text that says who; the kernel lets go when the process dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_MOST_BYTES = 64 << 10


class HeldError(Exception):
    """Somebody else holds the file; `owner` is what they wrote into it."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


class LockFile:
    """Holds `path`, made where missing, from construction to `release`. Programs it starts do not inherit it.

    Raises:
        HeldError: another process, or another holder in this one, has it.
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self._path = path
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                text = os.read(fd, _MOST_BYTES).decode("utf-8", "replace").strip()
                os.close(fd)
                raise HeldError(text) from error
            except OSError:
                os.close(fd)
                raise
            if self._is_still_at_path(fd):
                break
            os.close(fd)  # its last owner removed it between our open and our lock
        self.fd = fd
        os.ftruncate(fd, 0)
        try:
            os.write(fd, owner.encode()[:_MOST_BYTES])
        except OSError:
            self.release()
            raise

    def _is_still_at_path(self, fd: int) -> bool:
        try:
            there = self._path.lstat()
        except FileNotFoundError:
            return False
        ours = os.fstat(fd)
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def release(self) -> None:
        """Remove the file and let go of it."""
        self._path.unlink(missing_ok=True)
        os.close(self.fd)
