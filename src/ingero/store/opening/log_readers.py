"""Finds readers of a database in write-ahead mode: while one reads a state of it, its log cannot be reset."""

from __future__ import annotations

import os
from pathlib import Path

from ingero.foreign_text import decoded, visible

# Of the -shm file, that each reader locks one of (sqlite.org/walformat.html, "WAL locks": WAL_READ_LOCK(0) to (4)).
_READ_LOCKS = range(123, 128)
_MAX_READERS = 3
_MAX_COMMAND_BYTES = 80


def log_readers(path: Path, *, proc: Path = Path("/proc")) -> str:
    """The processes that read the database now, as `less [1234]`; "" where none can be named.

    This process and those of another pid namespace are not among them. Only by `stat`: opening the -shm file and
    closing it again would drop the locks that SQLite holds in this process.
    """
    try:
        about = path.with_name(f"{path.name}-shm").stat()
        lines = (proc / "locks").read_text().splitlines()
    except OSError:
        return ""
    pids = {pid: None for line in lines if (pid := _reader_in(line, about.st_ino)) and pid != os.getpid()}
    named = [f"{_command(proc / str(pid))} [{pid}]" for pid in pids]
    return ", ".join(named[:_MAX_READERS]) + (f" and {len(named) - _MAX_READERS} more" * (len(named) > _MAX_READERS))


def _reader_in(line: str, inode: int) -> int | None:
    """`1: POSIX  ADVISORY  READ 1234 fd:00:5678 123 123` (Documentation/filesystems/proc.rst); pid 0 is a stranger's.

    The GPU is not compared: on overlays and btrfs it is another than stat says.
    """
    fields = line.split()
    if len(fields) != 8 or fields[1] != "POSIX" or fields[5].rpartition(":")[2] != str(inode):
        return None
    pid, first = fields[4], fields[6]
    return int(pid) if pid.isdecimal() and first.isdecimal() and int(first) in _READ_LOCKS else None


def _command(process: Path) -> str:
    try:
        with (process / "comm").open("rb") as file:  # its command line lies in memory, which may not answer
            words = file.read(_MAX_COMMAND_BYTES).strip()
    except OSError:
        return "a process"
    return visible(" ".join(decoded(words).split())) or "a process"
