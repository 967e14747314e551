"""Where return addresses lie, and for how long the mappings of a process are read."""

from __future__ import annotations

from ingero.capture.processes.callers import CallerLocations, CodeLocation
from ingero.discover.memory_files import MemoryFiles

_LINE = b"%x-%x r-xp 00001000 08:01 7 /lib/%s\n"


class Mapped(MemoryFiles):
    """A process that takes its time to be read."""

    def __init__(self, took_s: float) -> None:
        super().__init__()
        self.now_s, self.reads, self.raw, self._took_s = 100.0, 0, b"", took_s

    def maps(self, pid: int) -> bytes:
        del pid
        self.reads += 1
        self.now_s += self._took_s
        return self.raw


def test_an_address_in_a_library_that_was_loaded_later_is_found() -> None:
    files = Mapped(0.001)
    callers = CallerLocations(1, files, lambda: files.now_s)
    files.raw = _LINE % (0x1000, 0x2000, b"a.so")
    assert callers.place(0x1010) == CodeLocation("a.so", 0x1010)
    files.raw += _LINE % (0x5000, 0x6000, b"b.so")
    files.now_s += 0.01
    assert callers.place(0x5020) == CodeLocation("b.so", 0x1020)
    assert callers.place(0x1020) == CodeLocation("a.so", 0x1020)
    assert files.reads == 2


def test_mappings_that_take_long_are_read_for_a_fifth_of_the_time() -> None:
    files = Mapped(0.3)
    callers = CallerLocations(1, files, lambda: files.now_s)
    for address in range(0x5000, 0x5100):  # each is another caller, in what is mapped anew each time
        assert callers.place(address) == CodeLocation("", address)
    assert files.reads == 1
    files.raw = _LINE % (0x5000, 0x6000, b"b.so")
    files.now_s += 1.1
    assert callers.place(0x5010) == CodeLocation("", 0x5010)
    files.now_s += 0.1
    assert callers.place(0x5010) == CodeLocation("b.so", 0x1010), "what was not known is looked up again"
    assert files.reads == 2
