"""Opens files and reads device nodes in the roots of other processes, which may contain anything.

An absolute symbolic link in another root would lead the agent to the host's files, opening a FIFO would block it, and
opening some devices has effects: the kernel resolves the path inside that root (openat2, Linux 5.6), what lies there is
checked before it is opened, and only regular files are.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

_PROC = Path("/proc")
_OPENAT2 = 437  # on every architecture: include/uapi/asm-generic/unistd.h
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10  # include/uapi/linux/openat2.h
_libc = ctypes.CDLL(None, use_errno=True)


class RootFiles:
    """Small files and device nodes in the root of another process, read in this process.

    A file system that does not answer holds up who asks: a recording asks through the sandbox
    (capture/foreign/root_files.py).
    """

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc

    def read(self, pid: int, path: str, most_bytes: int) -> bytes:
        """The first bytes of a regular file.

        Raises:
            OSError: there is no such file, it is no regular one, or there is no answer.
        """
        return read_in_root(self._proc / str(pid) / "root", path, most_bytes)

    def devices(self, pid: int, paths: Sequence[str]) -> list[tuple[int, int] | None]:
        """(major, minor) of the character device at each path; None where there is none.

        Raises:
            OSError: the root may not be read, is gone, or there is no answer.
        """
        root = self._proc / str(pid) / "root"
        return [device_in_root(root, path) for path in paths]


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def read_in_root(root: Path, path: str, most_bytes: int) -> bytes:
    """The first bytes of a regular file below `root`.

    Raises:
        OSError: there is no such file, or it is no regular one.
    """
    file = _readable(_place_in_root(root, path), f"{root}/{path}")
    try:
        return os.read(file, most_bytes)
    finally:
        os.close(file)


def status_in_root(root: Path, path: str) -> os.stat_result:
    """The status of a path below `root`; nothing is opened.

    Raises:
        OSError: nothing does.
    """
    place = _place_in_root(root, path)
    try:
        return os.fstat(place)
    finally:
        os.close(place)


def device_in_root(root: Path, path: str) -> tuple[int, int] | None:
    """(major, minor) of a character device below `root`; None where there is no such node. It is not opened.

    Raises:
        OSError: the root itself may not be read, or is gone.
    """
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        place = _open(folder, path)
    except OSError:
        return None
    finally:
        os.close(folder)
    try:
        status = os.fstat(place)
    finally:
        os.close(place)
    is_device = stat.S_ISCHR(status.st_mode)
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if is_device else None


def open_regular(path: Path) -> int:
    """A descriptor of a regular file, for reading. Below /proc/PID/root no link leads out of that root.

    Raises:
        OSError: there is no such file, or it is no regular one.
    """
    parts = path.parts
    if parts[:2] == ("/", "proc") and parts[3:4] == ("root",):
        place = _place_in_root(Path(*parts[:4]), "/".join(parts[4:]))
    else:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    return _readable(place, str(path))


def _place_in_root(root: Path, path: str) -> int:
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _open(folder, path)
    finally:
        os.close(folder)


def _readable(place: int, name: str) -> int:
    """What a descriptor stands for (O_PATH, closed here), open for reading."""
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", name)
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(place)


def _open(folder: int, path: str) -> int:
    how = _OpenHow(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_MAGICLINKS | _RESOLVE_IN_ROOT)
    file = int(_libc.syscall(_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)))
    if file < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    return file
