"""Reads /proc/PID/maps: which files a process has mapped, and where.

The files of hundreds of processes are read every second, so the search for a few library names works on the raw
bytes; a line becomes a record only when it names one of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ingero.discover.processes import PROC

_DELETED = " (deleted)"
_LINE = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) *([^\n]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """One line of /proc/PID/maps.

    start, end: addresses; offset: in the file, bytes.
    device, inode: as the kernel shows them; on overlayfs they are those of the overlay or, before Linux 6.8, of the
        file below it.
    path: as the process sees it, in its own mount namespace and root; empty for anonymous memory.
    is_deleted: the kernel put " (deleted)" behind the path; a file may also be called so.
    """

    start: int
    end: int
    permissions: str
    offset: int
    device: int
    inode: int
    path: str
    is_deleted: bool

    @property
    def range_name(self) -> str:
        """The name of this mapping in /proc/PID/map_files."""
        return f"{self.start:x}-{self.end:x}"


def read_maps(pid: int, proc: Path = PROC) -> bytes:
    """The raw text of /proc/PID/maps; empty for kernel threads.

    Raises:
        OSError: the process is gone, or CAP_SYS_PTRACE is missing for another user's process.
    """
    return (proc / str(pid) / "maps").read_bytes()


def parse_maps(raw: bytes) -> Iterator[Mapping]:
    """Every mapping of a maps text, in order of address."""
    for match in _LINE.finditer(raw):
        yield _record(match)


def mappings_named(raw: bytes, name: re.Pattern[bytes]) -> Iterator[Mapping]:
    """The mappings whose path matches `name`; the rest is not parsed.

    name: must begin with a literal text, which makes the search through a long maps text cheap.
    """
    end = 0
    for hit in name.finditer(raw):
        if hit.start() < end:
            continue
        start = raw.rfind(b"\n", 0, hit.start()) + 1
        line = _LINE.match(raw, start)
        if line is not None:
            end = line.end()
            yield _record(line)


def _record(match: re.Match[bytes]) -> Mapping:
    start, end, permissions, offset, major, minor, inode, path = match.groups()
    # The kernel escapes nothing but the newline in this file.
    name = os.fsdecode(path.replace(b"\\012", b"\n"))
    is_deleted = name.endswith(_DELETED)
    return Mapping(
        start=int(start, 16),
        end=int(end, 16),
        permissions=permissions.decode(),
        offset=int(offset, 16),
        device=os.makedev(int(major, 16), int(minor, 16)),
        inode=int(inode),
        path=name.removesuffix(_DELETED),
        is_deleted=is_deleted,
    )
