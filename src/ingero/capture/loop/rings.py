"""Drains a BPF ring buffer of fixed-size records in batches, without a copy per record.

Layout: kernel/bpf/ringbuf.c (consumer page, producer page, data; an 8-byte header with length, busy and discard bits
before each record).
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from ingero.attach.libbpf import Map
from ingero.errors import IngeroError

HEADER_BYTES = 8
_WORD_BYTES = 4
_BUSY = 1 << 31
_DISCARDED = 1 << 30
_LENGTH_MASK = _DISCARDED - 1
DRAIN_LIMIT = 8192  # records at once: rows made of them are 10 times as large, and the agent's memory follows the peak


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
        self._record_bytes = dtype.itemsize
        if dtype.itemsize % 8:
            raise RingCorruptError(
                f"records of ring {ring.name} are not a multiple of 8 bytes", hint="make clean build"
            )
        page = mmap.PAGESIZE
        self._consumer = mmap.mmap(ring.fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        # the kernel offers the data twice, end to end; mapped once, the agent's resident memory counts it once
        self._producer = mmap.mmap(ring.fd, page + self.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._data: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(self._producer, np.uint8, self.size_bytes, page)
        self._words: np.ndarray[Any, np.dtype[np.uint32]] = self._data.view(np.uint32)
        self._steps = np.arange(DRAIN_LIMIT) * (dtype.itemsize // _WORD_BYTES)
        # numpy moves an aligned word at once; struct.pack("<Q") writes it byte by byte, and the kernel would see halves
        self._produced: np.ndarray[Any, np.dtype[np.uint64]] = np.frombuffer(self._producer, np.uint64, 1)
        self._consumed: np.ndarray[Any, np.dtype[np.uint64]] = np.frombuffer(self._consumer, np.uint64, 1)
        self._at = int(self._consumed[0])
        self.fd = ring.fd

    def drain(self, limit: int = DRAIN_LIMIT) -> np.ndarray[Any, np.dtype[Any]]:
        """Up to `limit` finished records as one structured array of their own memory, oldest first.

        Raises:
            RingCorruptError: the records do not have the expected size.
        """
        headers = self._finished_headers(self._at, limit)
        if not len(headers):
            return np.empty(0, self.dtype)
        batch = self._copied(self._at, len(headers))
        self._at += len(headers) * self._record_bytes
        self._consumed[0] = self._at
        return _kept(batch, headers)

    def written_since(self, position: int, limit: int = DRAIN_LIMIT) -> np.ndarray[Any, np.dtype[Any]]:
        """Up to `limit` finished records from a position (`produced`, earlier) on; they stay in the ring."""
        headers = self._finished_headers(position, limit)
        return _kept(self._copied(position, len(headers)), headers)

    def _finished_headers(self, position: int, limit: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """Headers of the records before the first one that its producer still writes.

        They are read before their records: a header that says finished is written after its record, so a record that is
        read later is whole.
        """
        count = min((self.produced - position) // self._record_bytes, limit, DRAIN_LIMIT)
        if count <= 0:
            return np.empty(0, np.uint32)
        places = self._steps[:count] + position // _WORD_BYTES & len(self._words) - 1
        headers: np.ndarray[Any, np.dtype[np.uint32]] = self._words[places]
        length = self._record_bytes - HEADER_BYTES
        if (headers == length).all():
            return headers
        busy = np.flatnonzero(headers & _BUSY)
        if len(busy):
            headers = headers[: busy[0]]
        if ((headers & _LENGTH_MASK) != length).any():
            raise RingCorruptError(
                f"ring {self.name} holds records of another size than this agent's", hint="make build"
            )
        return headers

    def _copied(self, position: int, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        start = position % self.size_bytes
        end = start + count * self._record_bytes
        if end <= self.size_bytes:
            raw = self._data[start:end].copy()
        else:
            raw = np.concatenate([self._data[start:], self._data[: end - self.size_bytes]])
        records: np.ndarray[Any, np.dtype[Any]] = raw.view(self.dtype)
        return records

    @property
    def produced(self) -> int:
        """Bytes ever written, records in progress included: where the next record begins."""
        return int(self._produced[0])

    @property
    def drained(self) -> int:
        """Bytes ever drained."""
        return self._at

    @property
    def filled(self) -> float:
        """The share of it that is written and not drained."""
        return (self.produced - self._at) / self.size_bytes

    def close(self) -> None:
        """Unmaps the ring."""
        del self._data, self._words, self._produced, self._consumed
        self._consumer.close()
        self._producer.close()

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Backlog:
    """What was in rings at a moment. written: each ring, and where its next record would have begun then."""

    written: tuple[tuple[Ring, int], ...] = ()

    @property
    def is_drained(self) -> bool:
        """Whether all of it has left the rings since."""
        return all(ring.drained >= position for ring, position in self.written)


def _kept(batch: np.ndarray[Any, Any], headers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Without the records that their producers discarded."""
    discarded = (headers & _DISCARDED) != 0
    return batch[~discarded] if discarded.any() else batch
