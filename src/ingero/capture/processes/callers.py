"""Finds the library of a return address in /proc/PID/maps, read again only when a new address appears.

Anybody may have 65,000 mappings, which take 0.3 s to read, and call from another address each time: the loop reads them
for a fifth of its time at most, and knows less of such a process.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from ingero.discover.mappings import parse_maps
from ingero.discover.memory_files import MemoryFiles

_PAUSES = 4  # as long as it took to read them


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """The location of an address: library (file name, `""` unknown) and offset in its file (the address if unknown)."""

    library: str
    offset: int


@dataclass(frozen=True, slots=True)
class _MappedRange:
    start: int
    end: int
    file_offset: int
    name: str


class CallerLocations:
    """Locations of one process's return addresses, kept after the process has ended."""

    def __init__(self, pid: int, files: MemoryFiles | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._files, self._now = pid, files or MemoryFiles(), now
        self._next_s = 0.0  # when they may be read again
        self._known: dict[int, CodeLocation] = {}
        self._ranges: list[_MappedRange] = []
        self._starts: list[int] = []

    def read_mappings(self) -> None:
        """Reads the mappings now: a process may end before its first return address is looked up."""
        self._read_ranges()

    def place(self, address: int) -> CodeLocation:
        """The location of a return address."""
        found = self._known.get(address)
        if found is None:
            found, is_certain = self._locate(address)
            if is_certain:
                self._known[address] = found
        return found

    def _locate(self, address: int) -> tuple[CodeLocation, bool]:
        """The location of an address, and whether it is final."""
        if address == 0:
            return CodeLocation("", 0), True
        found, is_new = self._in_ranges(address), True
        if found is None:
            is_new = self._read_ranges()
            found = self._in_ranges(address)
        if found is None:
            return CodeLocation("", address), is_new
        return CodeLocation(found.name, address - found.start + found.file_offset), True

    def _in_ranges(self, address: int) -> _MappedRange | None:
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address < self._ranges[index].end:
            return self._ranges[index]
        return None

    def _read_ranges(self) -> bool:
        """Reads the mappings, unless it is too soon; a process that has ended keeps those last seen."""
        began_s = self._now()
        if began_s < self._next_s:
            return False
        try:
            self._take(self._files.maps(self._pid))
        except OSError:  # it does not answer, or has ended and only its records have still been on their way
            return True
        finally:
            now_s = self._now()
            self._next_s = now_s + _PAUSES * (now_s - began_s)
        return True

    def _take(self, raw: bytes) -> None:
        ranges = [
            _MappedRange(m.start, m.end, m.offset, PurePath(m.path).name or "[anonymous]")
            for m in parse_maps(raw)
            if "x" in m.permissions
        ]
        if ranges:
            self._ranges = ranges
            self._starts = [entry.start for entry in ranges]

    def forget_mappings(self) -> None:
        """Forgets the mappings after exec."""
        self._known.clear()
        self._next_s = 0.0
        self._ranges, self._starts = [], []
