"""Lock file that one process holds at a time, with a text naming it; the kernel releases it when the process dies."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

_MAX_BYTES = 64 << 10
_MAGIC = b"ingero\n"  # of each lock that a recorder wrote: other programs have files of such names, too


class HeldError(Exception):
    """Another process holds the file; `owner` is the text that it wrote into it."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


class NotALockError(Exception):
    """The file there was not made by a `LockFile`; it is left as it is."""


class LockFile:
    """Holds `path`, made where missing, from construction to `release`. Programs it starts do not inherit it.

    left: the text of the previous holder if it was killed; else "".

    Raises:
        HeldError: another process, or another holder in this one, has it.
        NotALockError: a file of somebody else has this name.
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self._path = path
        self.left = ""
        self.fd = self._locked()
        try:
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, _MAGIC + owner.encode()[:_MAX_BYTES], 0)
        except OSError:
            self.release()
            raise

    def _locked(self) -> int:
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            try:
                self.left = _lock(fd)
                if self._is_still_at_path(fd):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # its last owner removed it between our open and our lock

    def _is_still_at_path(self, fd: int) -> bool:
        try:
            there = self._path.lstat()
        except FileNotFoundError:
            return False
        ours = os.fstat(fd)
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def release(self) -> None:
        """Remove the file and release the lock."""
        self._path.unlink(missing_ok=True)
        os.close(self.fd)


def _lock(fd: int) -> str:
    """Lock the file; the text that a killed holder left in it."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise NotALockError
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise HeldError(_owner(fd)) from error
    return _owner(fd)


def _owner(fd: int) -> str:
    """The text that its holder wrote; "": none yet."""
    content = os.pread(fd, len(_MAGIC) + _MAX_BYTES, 0)
    if not content.startswith(_MAGIC[: len(content)]):
        raise NotALockError
    return content[len(_MAGIC) :].decode("utf-8", "replace").strip()
