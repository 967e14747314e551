"""Looks at small files and device nodes inside another process's root, whose owner may have put anything there.

An absolute symbolic link there would lead the agent to the host's files, and opening a FIFO would block it: the kernel
resolves the path inside that root (openat2, Linux 5.6), and nothing but a regular file is read.
"""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

_OPENAT2 = 437  # on every architecture: include/uapi/asm-generic/unistd.h
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10  # include/uapi/linux/openat2.h
_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def read_in_root(root: Path, path: str, most_bytes: int) -> bytes:
    """The first bytes of a regular file below `root`.

    Raises:
        OSError: there is no such file, or it is no regular one.
    """
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        file = _open(folder, path)
    finally:
        os.close(folder)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{root}/{path} is no regular file")
        return os.read(file, most_bytes)
    finally:
        os.close(file)


def device_in_root(root: Path, path: str) -> tuple[int, int] | None:
    """(major, minor) of a character device below `root`; None where there is no such node. It is not opened.

    Raises:
        OSError: the root itself may not be looked at, or is gone.
    """
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        file = _open(folder, path, flags=os.O_PATH)
    except OSError:
        return None
    finally:
        os.close(folder)
    try:
        status = os.fstat(file)
    finally:
        os.close(file)
    is_device = stat.S_ISCHR(status.st_mode)
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if is_device else None


def _open(folder: int, path: str, flags: int = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY) -> int:
    how = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE_NO_MAGICLINKS | _RESOLVE_IN_ROOT)
    file = int(_libc.syscall(_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)))
    if file < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    return file
