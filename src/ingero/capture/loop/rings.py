"""Drains a BPF ring buffer of fixed-size records in batches, without copying each record.

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

HEADER_BYTES = 8  # BPF_RINGBUF_HDR_SZ, linux/bpf.h
_WORD_BYTES = 4
_BUSY = 1 << 31  # BPF_RINGBUF_BUSY_BIT
_DISCARDED = 1 << 30  # BPF_RINGBUF_DISCARD_BIT
_LENGTH_MASK = _DISCARDED - 1
DRAIN_LIMIT = 8192  # records at once: rows made of them are 10 times as large, and the agent's memory follows the peak


class RingCorruptError(IngeroError):
    """A record header has the wrong length: agent and BPF object do not match."""


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
        batch = self._copy_records(self._at, len(headers))
        self._at += len(headers) * self._record_bytes
        self._consumed[0] = self._at
        return _without_discarded(batch, headers)

    def records_since(self, position: int, limit: int = DRAIN_LIMIT) -> np.ndarray[Any, np.dtype[Any]]:
        """Up to `limit` finished records from a position (an earlier `produced_bytes`) on; they stay in the ring."""
        headers = self._finished_headers(position, limit)
        return _without_discarded(self._copy_records(position, len(headers)), headers)

    def _finished_headers(self, position: int, limit: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """Headers of the finished records: those before the first one still being written.

        They are read before their records: a header that says finished is written after its record, so a record that is
        read later is whole.
        """
        count = min((self.produced_bytes - position) // self._record_bytes, limit, DRAIN_LIMIT)
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

    def _copy_records(self, position: int, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        start = position % self.size_bytes
        end = start + count * self._record_bytes
        if end <= self.size_bytes:
            raw = self._data[start:end].copy()
        else:
            raw = np.concatenate([self._data[start:], self._data[: end - self.size_bytes]])
        records: np.ndarray[Any, np.dtype[Any]] = raw.view(self.dtype)
        return records

    @property
    def produced_bytes(self) -> int:
        """Total bytes written, records in progress included: where the next record begins."""
        return int(self._produced[0])

    @property
    def drained_bytes(self) -> int:
        """Total bytes drained."""
        return self._at

    @property
    def fill_ratio(self) -> float:
        """The fill ratio: written and not yet drained."""
        return (self.produced_bytes - self._at) / self.size_bytes

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
    """The content of rings at a moment. written: each ring, and where its next record would have begun."""

    written: tuple[tuple[Ring, int], ...] = ()

    @property
    def is_drained(self) -> bool:
        """Whether all of that content has been drained since."""
        return all(ring.drained_bytes >= position for ring, position in self.written)


def _without_discarded(batch: np.ndarray[Any, Any], headers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The batch without the records that their producers discarded."""
    discarded = (headers & _DISCARDED) != 0
    return batch[~discarded] if discarded.any() else batch
