"""Batches in memory that the loader and its workers share."""

import ctypes
import mmap

from ingero.demo.workloads.minitorch import runtime


class Arena:
    """`count` slots of `slot_bytes` in one anonymous mapping; fork() after making it."""

    def __init__(self, count: int, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self._stride = -(-max(1, slot_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self._stride * count)
        self._free = list(range(count))

    def take(self) -> int:
        """Return a slot that nobody uses."""
        return self._free.pop()

    def give(self, slot: int) -> None:
        """Take a slot back."""
        self._free.append(slot)

    def write(self, slot: int, content: bytes) -> None:
        """Put the content at the slot's start."""
        start = slot * self._stride
        self._map[start : start + len(content)] = content

    def register(self) -> None:
        """Pin all slots where they lie: a copy from one is not waited for. Only in the process that copies."""
        runtime.library().cudaHostRegister(self.address(0), len(self._map), 0)

    def address(self, slot: int) -> int:
        """Return where the slot lies in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map, slot * self._stride))
