"""The files of /proc/PID that the kernel reads out of a process's memory, or under a lock that the process can hold,
and that memory itself.

Whoever holds it holds up who reads: a program may stand in the middle of an exec because a file that it closes
lies in a file system that does not answer, or have a page of such a file read for it while it maps another one.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingero.discover.memory import ProcessMemory, open_memory
from ingero.discover.processes import PROC
from ingero.foreign_text import decoded

MAX_MAPS_BYTES = 16 << 20  # 65,530 mappings, the most by default, with paths of 150 bytes
MAX_MAPPED_BYTES = 1 << 20
_MAX_STAT_BYTES = 4096
_MAX_ENVIRON_BYTES = 1 << 20  # an environment may have 6 MB: what launchers set comes first
_MAX_COMMAND_LINE_BYTES = 64 << 10  # of which people are shown the beginning


@dataclass(frozen=True, slots=True)
class LaunchedWith:
    """Environment and command line of a process; None: not permitted, or the process is gone.

    is_withheld: there was no answer in time, which says nothing about either.
    """

    environ: bytes | None
    command_line: bytes | None
    is_withheld: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a thread. call: /proc's text, `running` or the system call; switches: its context switches."""

    call: str
    switches: int

    @property
    def is_blocked(self) -> bool:
        """Whether the thread is blocked."""
        return self.call not in ("", "running")

    @property
    def registers(self) -> tuple[int, int]:
        """Stack pointer and program counter of a blocked thread."""
        sp, pc = self.call.split()[-2:]
        return int(sp, 16), int(pc, 16)


class MemoryFiles:
    """Reads these files in this process; a recording uses the sandbox (capture/foreign/memory_files.py)."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc

    def is_paused(self, pid: int) -> bool:
        """Whether a process is left alone for now, because it did not answer before."""
        del pid
        return False

    def launched_with(self, pid: int) -> LaunchedWith:
        """Reads environment, then command line: a process with only one of them was given no other."""
        folder = self._proc / str(pid)
        return LaunchedWith(
            _first_bytes(folder / "environ", _MAX_ENVIRON_BYTES),
            _first_bytes(folder / "cmdline", _MAX_COMMAND_LINE_BYTES),
        )

    def stat(self, pid: int) -> bytes | None:
        """The text of /proc/PID/stat; None if the process is gone or does not answer."""
        return _first_bytes(self._proc / str(pid) / "stat", _MAX_STAT_BYTES)

    def pid_namespace(self, pid: int) -> int:
        """The inode of the pid namespace of a process; 0 if not readable."""
        try:
            return (self._proc / str(pid) / "ns" / "pid").stat().st_ino
        except OSError:
            return 0

    def program(self, pid: int) -> str:
        """The path of a process's program.

        Raises:
            OSError: it is gone, not ours to read, or there is no answer; so do all that follow.
        """
        return os.fsdecode(os.readlink(self._proc / str(pid) / "exe"))  # noqa: PTH115  # names are any bytes

    def positions(self, pid: int, tids: Sequence[int]) -> list[Position | None]:
        """The positions of threads of a process; None for one that is gone."""
        return [self._position(pid, tid) for tid in tids]

    def _position(self, pid: int, tid: int) -> Position | None:
        task = self._proc / str(pid) / "task" / str(tid)
        call, status = (_first_bytes(task / name, _MAX_STAT_BYTES) for name in ("syscall", "status"))
        if call is None or status is None:
            return None
        lines = (line.split() for line in status.splitlines() if b"ctxt_switches" in line)
        return Position(decoded(call).strip(), sum(int(line[1]) for line in lines))

    def mapped(self, pid: int, address: int, size: int) -> bytes:
        """Up to `size` bytes of a process's memory, as many as are mapped in one piece."""
        with ProcessMemory(pid, self._proc) as memory:
            return memory.mapped(address, min(size, MAX_MAPPED_BYTES))

    def memory(self, pid: int) -> int:
        """A descriptor of a process's memory; the caller closes it, and reads only where it may block."""
        return open_memory(pid, self._proc)

    def maps(self, pid: int) -> bytes:
        """The raw text of /proc/PID/maps; empty for kernel threads.

        Raises:
            OSError: the process is gone, CAP_SYS_PTRACE is missing for another user's process, there is no answer, or
                there are more mappings than are read.
        """
        with (self._proc / str(pid) / "maps").open("rb") as file:
            raw = file.read(MAX_MAPS_BYTES + 1)
        if len(raw) > MAX_MAPS_BYTES:
            raise OSError(errno.EFBIG, "it has too many mappings")
        return raw


class Environ(enum.Enum):
    """How much of the environment that a process was started with can still be read."""

    WHOLE = "whole"
    WIPED = "wiped"  # a title lies over its beginning: what is not in it may have been
    EMPTY = "empty"
    UNREADABLE = "unreadable"  # not ours to read, withheld, or the process is gone


def environment(found: LaunchedWith) -> tuple[dict[str, str], Environ]:
    """The environment (see `variables`), and how complete it is. Of a wiped one, only what lies behind the title."""
    if found.environ is None:
        return {}, Environ.UNREADABLE
    if not found.environ:
        return {}, Environ.EMPTY
    first, *rest = found.environ.split(b"\0")
    line = found.command_line or b""
    # /proc shows a title to its end, which lies in the environment where it is longer than the arguments were
    is_title = b"=" not in first or line.split(b"\0")[0].endswith(first)
    return (_pairs(rest), Environ.WIPED) if is_title else (_pairs([first, *rest]), Environ.WHOLE)


def variables(found: LaunchedWith) -> dict[str, str] | None:
    """The environment the process was started with, without later setenv() calls. None if not known."""
    return None if found.environ is None else _pairs(found.environ.split(b"\0"))


def command_line(found: LaunchedWith) -> tuple[str, ...]:
    """The words of the command line; none for a kernel thread or a zombie, or if not known."""
    raw = found.command_line or b""
    return tuple(decoded(word) for word in raw.rstrip(b"\0").split(b"\0")) if raw else ()


def _pairs(entries: Iterable[bytes]) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry)
    return {decoded(key): decoded(value, most=_MAX_ENVIRON_BYTES) for key, _, value in pairs}


def _first_bytes(path: Path, most: int) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # gone, or not ours to read
        return None
    raw = b""
    try:
        while len(raw) < most and (piece := os.read(descriptor, most - len(raw))):
            raw += piece
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return raw
