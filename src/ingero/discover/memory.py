"""Reads the memory of another process, which may end or change at any moment."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from types import TracebackType

from ingero.discover.processes import PROC

_WORD = struct.Struct("<Q")


class UnreadableMemoryError(OSError):
    """The process has ended, or nothing is mapped there."""


def open_memory(pid: int, proc: Path = PROC) -> int:
    """A descriptor of a process's memory, of the program that it runs now; of a later one it reads nothing.

    Raises:
        OSError: the process is gone, or CAP_SYS_PTRACE is missing.
    """
    return os.open(proc / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)


class ProcessMemory:
    """The memory of one process; use it in a `with` statement. descriptor: of /proc/PID/mem, open already.

    Reading blocks if the process holds its memory lock (discover/memory_files.py): a recording lets the sandbox read.

    Raises:
        OSError: the process is gone, or CAP_SYS_PTRACE is missing.
    """

    def __init__(self, pid: int, proc: Path = PROC, *, descriptor: int | None = None) -> None:
        self._descriptor = open_memory(pid, proc) if descriptor is None else os.dup(descriptor)

    def read(self, address: int, size: int) -> bytes:
        """Reads exactly `size` bytes.

        Raises:
            UnreadableMemoryError: they are not all there.
        """
        try:
            data = os.pread(self._descriptor, size, address)
        except (OSError, OverflowError) as error:
            raise UnreadableMemoryError(f"{address:#x}: {error}") from None
        if len(data) != size:
            raise UnreadableMemoryError(f"{address:#x}: {len(data)} of {size} bytes")
        return data

    def mapped(self, address: int, size: int) -> bytes:
        """Reads up to `size` bytes, as many as are mapped in one piece.

        Raises:
            UnreadableMemoryError: not even the first.
        """
        try:
            return os.pread(self._descriptor, size, address)
        except (OSError, OverflowError) as error:
            raise UnreadableMemoryError(f"{address:#x}: {error}") from None

    def word(self, address: int) -> int:
        """Reads eight bytes as an unsigned number."""
        return int(_WORD.unpack(self.read(address, _WORD.size))[0])

    def text(self, address: int, limit: int = 256) -> str:
        """Reads a zero-terminated string, cut at `limit` bytes."""
        found = b""
        while len(found) < limit:
            found += self.read(address + len(found), 8)
            end = found.find(b"\0")
            if end >= 0:
                return found[:end].decode(errors="replace")
        return found[:limit].decode(errors="replace")

    def close(self) -> None:
        """Closes the memory file."""
        os.close(self._descriptor)

    def __enter__(self) -> ProcessMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
