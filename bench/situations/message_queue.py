"""A ring of one message in shared memory, as vLLM's shm_broadcast: whoever reads it spins."""

from __future__ import annotations

import mmap
import os
import struct

_WORD = struct.Struct("=Q")


class MessageQueue:
    """One message at a time, without locks."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def publish(self, number: int) -> None:
        """Lets the worker have message `number`."""
        _WORD.pack_into(self._memory, 0, number)

    def acquire_read(self, number: int) -> None:
        """Spins until message `number` is there."""
        while _WORD.unpack_from(self._memory, 0)[0] < number:
            os.sched_yield()
