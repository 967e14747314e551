"""A BPF ring in a file that is laid out as the kernel does it: consumer page, producer page, data."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from ingero.attach.libbpf import Map
from ingero.capture.loop.rings import Backlog, Ring, RingCorruptError

DTYPE = np.dtype([("ring_header", "<u8"), ("number", "<u8"), ("other", "<u8")])
PAGE = mmap.PAGESIZE
SIZE = PAGE  # no multiple of 24: some record lies across the end
BUSY, DISCARDED = 1 << 31, 1 << 30


class Producer:
    """Writes records as BPF programs do."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, 2 * PAGE + SIZE)
        self.written_bytes = 0

    def write(self, number: int, *, flags: int = 0, length: int = 16) -> None:
        record = struct.pack("<QQQ", length | flags, number, ~number & (1 << 64) - 1)
        for index, byte in enumerate(record):
            os.pwrite(self.fd, bytes([byte]), 2 * PAGE + (self.written_bytes + index) % SIZE)
        self.written_bytes += len(record)
        os.pwrite(self.fd, struct.pack("<Q", self.written_bytes), PAGE)

    def write_header(self, index: int, header: int) -> None:
        os.pwrite(self.fd, struct.pack("<I", header), 2 * PAGE + index * DTYPE.itemsize)

    @property
    def consumed_bytes(self) -> int:
        return int(struct.unpack("<Q", os.pread(self.fd, 8, 0))[0])


@pytest.fixture
def producer() -> Iterator[Producer]:
    made = Producer()
    yield made
    os.close(made.fd)


@pytest.fixture
def ring(producer: Producer) -> Iterator[Ring]:
    with Ring(Map("records", producer.fd, 0, 0, SIZE), DTYPE) as opened:
        yield opened


def numbers(batch: np.ndarray) -> list[int]:  # type: ignore[type-arg]
    assert (batch["other"] == ~batch["number"]).all()
    return batch["number"].tolist()  # type: ignore[no-any-return]


def test_an_empty_ring_gives_nothing(ring: Ring) -> None:
    assert len(ring.drain()) == 0


def test_records_come_once_and_in_order(producer: Producer, ring: Ring) -> None:
    for number in range(5):
        producer.write(number)
    assert numbers(ring.drain()) == [0, 1, 2, 3, 4]
    assert len(ring.drain()) == 0
    assert producer.consumed_bytes == producer.written_bytes


def test_records_across_the_end_of_the_ring_are_whole(producer: Producer, ring: Ring) -> None:
    drained: list[int] = []
    for number in range(1000):
        producer.write(number)
        if number % 7 == 0:
            drained += numbers(ring.drain())
    assert drained + numbers(ring.drain()) == list(range(1000))


def test_a_limit_leaves_the_rest_for_later(producer: Producer, ring: Ring) -> None:
    for number in range(5):
        producer.write(number)
    assert numbers(ring.drain(limit=3)) == [0, 1, 2]
    assert numbers(ring.drain(limit=3)) == [3, 4]


def test_a_record_in_progress_holds_up_those_behind_it(producer: Producer, ring: Ring) -> None:
    producer.write(0)
    producer.write(1, flags=BUSY)
    producer.write(2)
    assert numbers(ring.drain()) == [0]
    producer.write_header(1, 16)
    assert numbers(ring.drain()) == [1, 2]


def test_discarded_records_are_skipped(producer: Producer, ring: Ring) -> None:
    for number in range(4):
        producer.write(number, flags=DISCARDED if number % 2 else 0)
    assert numbers(ring.drain()) == [0, 2]
    assert producer.consumed_bytes == producer.written_bytes


def test_records_of_another_size_are_refused(producer: Producer, ring: Ring) -> None:
    producer.write(0, length=24)
    with pytest.raises(RingCorruptError):
        ring.drain()


def test_looking_at_new_records_leaves_them_in_the_ring(producer: Producer, ring: Ring) -> None:
    producer.write(0)
    position = ring.produced_bytes
    producer.write(1)
    assert numbers(ring.records_since(position)) == [1]
    assert numbers(ring.drain()) == [0, 1]


def test_batches_outlive_what_the_kernel_writes_over_them(producer: Producer, ring: Ring) -> None:
    producer.write(0)
    first = ring.drain()
    for number in range(1, 200):
        producer.write(number)
        ring.drain()
    assert numbers(first) == [0]


def test_a_ring_is_filled_by_what_is_written_and_not_drained(producer: Producer, ring: Ring) -> None:
    assert ring.fill_ratio == 0
    for number in range(1000):  # several times around
        producer.write(number)
        ring.drain()
    for number in range(4):
        producer.write(number)
    assert ring.fill_ratio == 4 * DTYPE.itemsize / SIZE
    ring.drain(limit=1)
    assert ring.fill_ratio == 3 * DTYPE.itemsize / SIZE


def test_a_backlog_is_drained_once_its_last_record_is_whatever_is_written_meanwhile(
    producer: Producer, ring: Ring
) -> None:
    for number in range(3):
        producer.write(number)
    backlog = Backlog(((ring, ring.produced_bytes),))
    producer.write(3)
    assert not backlog.is_drained
    ring.drain(limit=2)
    assert not backlog.is_drained
    ring.drain(limit=1)
    assert backlog.is_drained


def test_records_that_are_no_multiple_of_8_bytes_are_refused(producer: Producer) -> None:
    odd = np.dtype([("ring_header", "<u8"), ("number", "<u4")])
    with pytest.raises(RingCorruptError):
        Ring(Map("records", producer.fd, 0, 0, SIZE), odd)
