"""Drains a BPF ring buffer of fixed-size records in batches, without a copy per record.

Layout: kernel/bpf/ringbuf.c (consumer page, producer page, data mapped twice; an 8-byte header with length, busy and
discard bits before each record).
"""

from __future__ import annotations

import mmap
import struct
from types import TracebackType
from typing import Any

import numpy as np

from ingero.attach.libbpf import Map
from ingero.errors import IngeroError

HEADER_BYTES = 8
_BUSY = 1 << 31
_DISCARDED = 1 << 30
_LENGTH_MASK = _DISCARDED - 1
_POSITION = struct.Struct("<Q")


class RingCorruptError(IngeroError):
    """A header does not have the length of the ring's records: agent and BPF object differ."""


class Ring:
    """A ring whose records all have the layout `dtype` (made with `header_bytes=8`).

    Correct on x86-64, whose loads stay in order; others need a barrier between the positions and the data.
    """

    def __init__(self, ring: Map, dtype: np.dtype[Any]) -> None:
        self.name = ring.name
        self.dtype = dtype
        self.size_bytes = ring.max_entries
        self._record_bytes = -(-(dtype.itemsize) // 8) * 8
        if self._record_bytes != dtype.itemsize:
            raise RingCorruptError(
                f"records of ring {ring.name} are not a multiple of 8 bytes", hint="make clean build"
            )
        page = mmap.PAGESIZE
        self._consumer = mmap.mmap(ring.fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._producer = mmap.mmap(ring.fd, page + 2 * self.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._data = np.frombuffer(self._producer, np.uint8, 2 * self.size_bytes, page)
        self._at = _POSITION.unpack_from(self._consumer)[0]
        self.fd = ring.fd

    def drain(self, limit: int = 1 << 16) -> np.ndarray[Any, np.dtype[Any]]:
        """Up to `limit` finished records as one structured array of their own memory, oldest first.

        Raises:
            RingCorruptError: the records do not have the expected size.
        """
        produced = _POSITION.unpack_from(self._producer)[0]
        count = min((produced - self._at) // self._record_bytes, limit)
        if count <= 0:
            return np.empty(0, self.dtype)
        start = self._at % self.size_bytes
        span = self._data[start : start + count * self._record_bytes]
        batch = span.view(self.dtype).copy()
        headers = batch["ring_header"]
        batch = self._finished(batch, headers)
        self._at += len(batch) * self._record_bytes
        _POSITION.pack_into(self._consumer, 0, self._at)
        discarded = batch["ring_header"] & _DISCARDED
        return batch[discarded == 0] if discarded.any() else batch

    def _finished(self, batch: np.ndarray[Any, Any], headers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The records before the first one that its producer still writes."""
        busy = np.flatnonzero(headers & _BUSY)
        if len(busy):
            batch = batch[: busy[0]]
        lengths = batch["ring_header"] & _LENGTH_MASK
        if len(batch) and (lengths != self._record_bytes - HEADER_BYTES).any():
            raise RingCorruptError(
                f"ring {self.name} holds records of another size than this agent's", hint="make build"
            )
        return batch

    @property
    def backlog_bytes(self) -> int:
        """What waits to be drained."""
        return int(_POSITION.unpack_from(self._producer)[0] - self._at)

    def close(self) -> None:
        """Unmaps the ring."""
        del self._data
        self._consumer.close()
        self._producer.close()

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
