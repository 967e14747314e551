"""Files mapped by traced processes: opened, and symbols read, once for all; closed after the last of them."""

from __future__ import annotations

from ingero.capture.foreign.native_reader import NativeReader
from ingero.capture.stacks.address_space import MappedImages, ProcessAddressSpace
from ingero.capture.stacks.process_stacks import Symbols

_CLOSE_S = 10.0  # between two checks for files that no process maps: through what 256 processes map it takes 10 ms


class MappedFiles:
    """Address spaces by process number; for one thread. reader: reads the files."""

    def __init__(self, reader: NativeReader | None = None) -> None:
        self.reader = reader or NativeReader()
        self._images, self.symbols = MappedImages(self.reader), Symbols(self.reader)
        self._spaces: dict[int, ProcessAddressSpace] = {}
        self._has_forgotten = False  # a process, since the last look
        self._checked_s = 0.0

    def add(self, number: int, pid: int) -> ProcessAddressSpace:
        """Adds the address space of a process that is new, or runs another program."""
        space = self._spaces[number] = ProcessAddressSpace(pid, self._images)
        return space

    def __getitem__(self, number: int) -> ProcessAddressSpace:
        """The address space of a process that was added."""
        return self._spaces[number]

    def forget(self, number: int) -> None:
        """Forgets a process that has ended, or whose mappings are no longer needed."""
        self._has_forgotten |= self._spaces.pop(number, None) is not None

    def close_unused(self, now_s: float) -> None:
        """Closes the files that only forgotten processes mapped, a few seconds later. now_s: monotonic."""
        if self._has_forgotten and now_s - self._checked_s >= _CLOSE_S:
            self._has_forgotten, self._checked_s = False, now_s
            self.symbols.keep(self._images.let_go(self._spaces.values()))
