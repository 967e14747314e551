"""The files that traced processes map: opened, and their symbols read, once for all; closed after the last of them."""

from __future__ import annotations

from ingero.capture.foreign.native_reader import NativeReader
from ingero.capture.stacks.address_space import Images, ProcessAddressSpace
from ingero.capture.stacks.process_stacks import Symbols

_CLOSE_S = 10.0  # between two looks for files that nobody maps: through what 256 processes map it takes 10 ms


class MappedFiles:
    """Address spaces by process number. One thread. reader: reads the files."""

    def __init__(self, reader: NativeReader | None = None) -> None:
        self.reader = reader or NativeReader()
        self._images, self.symbols = Images(self.reader), Symbols(self.reader)
        self._spaces: dict[int, ProcessAddressSpace] = {}
        self._has_forgotten = False  # a process, since the last look
        self._looked_s = 0.0

    def add(self, number: int, pid: int) -> ProcessAddressSpace:
        """The address space of a process that is new, or runs another program."""
        space = self._spaces[number] = ProcessAddressSpace(pid, self._images)
        return space

    def __getitem__(self, number: int) -> ProcessAddressSpace:
        """That of a process that has been added."""
        return self._spaces[number]

    def forget(self, number: int) -> None:
        """The process has ended, or what it mapped is no longer asked for."""
        self._has_forgotten |= self._spaces.pop(number, None) is not None

    def close_unused(self, now_s: float) -> None:
        """Closes the files that only forgotten processes mapped, a few seconds later. now_s: monotonic."""
        if self._has_forgotten and now_s - self._looked_s >= _CLOSE_S:
            self._has_forgotten, self._looked_s = False, now_s
            self.symbols.keep(self._images.let_go(self._spaces.values()))
