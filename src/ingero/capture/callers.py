"""Which library a return address lies in, from /proc/PID/maps, read again only when a new address appears."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from pathlib import PurePath

from ingero.discover.mappings import parse_maps
from ingero.discover.memory_files import MemoryFiles


@dataclass(frozen=True, slots=True)
class Place:
    """Where an address lies: library (file name, `""` unknown) and offset in its file (the address where unknown)."""

    library: str
    offset: int


@dataclass(frozen=True, slots=True)
class _Range:
    start: int
    end: int
    file_offset: int
    name: str


class Callers:
    """Places of one process's return addresses, kept after the process has ended."""

    def __init__(self, pid: int, files: MemoryFiles | None = None) -> None:
        self._pid, self._files = pid, files or MemoryFiles()
        self._known: dict[int, Place] = {}
        self._ranges: list[_Range] = []
        self._starts: list[int] = []

    def read_mappings(self) -> None:
        """Reads what is mapped now: a process may end before its first return address is asked for."""
        self._read_ranges()

    def place(self, address: int) -> Place:
        """The place of a return address."""
        found = self._known.get(address)
        if found is None:
            found = self._look_up(address)
            self._known[address] = found
        return found

    def _look_up(self, address: int) -> Place:
        if address == 0:
            return Place("", 0)
        found = self._in_ranges(address)
        if found is None:
            self._read_ranges()
            found = self._in_ranges(address)
        if found is None:
            return Place("", address)
        return Place(found.name, address - found.start + found.file_offset)

    def _in_ranges(self, address: int) -> _Range | None:
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address < self._ranges[index].end:
            return self._ranges[index]
        return None

    def _read_ranges(self) -> None:
        """Reads the mappings; a process that has ended keeps those last seen."""
        try:
            raw = self._files.maps(self._pid)
        except OSError:  # it does not answer, or has ended and only its records have still been on their way
            return
        ranges = [
            _Range(m.start, m.end, m.offset, PurePath(m.path).name or "[anonymous]")
            for m in parse_maps(raw)
            if "x" in m.permissions
        ]
        if ranges:
            self._ranges = ranges
            self._starts = [entry.start for entry in ranges]

    def forget_mappings(self) -> None:
        """After exec: addresses mean something else now."""
        self._known.clear()
        self._ranges, self._starts = [], []
