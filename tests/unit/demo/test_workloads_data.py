"""The DataLoader with real forked workers."""

import ctypes
import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from ingero.demo.workloads.dataset import ImageDataset
from ingero.demo.workloads.minitorch.data import Batch, DataLoader, WorkerError, loader

ITEM_BYTES = 8


class NumberedItems(ImageDataset):
    """Each item is its own number; even ones take longer, so that two workers finish out of order."""

    def __init__(self) -> None:
        super().__init__(ITEM_BYTES)

    def __getitem__(self, index: int) -> bytes:
        if index % 2 == 0:
            time.sleep(0.003)
        return index.to_bytes(ITEM_BYTES, "little")


class BrokenItem(ImageDataset):
    """The third item cannot be read."""

    def __getitem__(self, index: int) -> bytes:
        if index == 2:
            raise OSError("bad sector")
        return b""


def content(batch: Batch) -> int:
    return int.from_bytes(ctypes.string_at(batch.pointer, ITEM_BYTES), "little")


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_batches_come_in_order_with_their_content(workers: int) -> None:
    with DataLoader(NumberedItems(), num_workers=workers) as batches:
        assert [content(b) for b in itertools.islice(batches, 20)] == list(range(20))


def test_a_failing_item_is_reported_where_it_is_used() -> None:
    with DataLoader(BrokenItem(ITEM_BYTES), num_workers=1) as batches:
        received = itertools.islice(batches, 5)
        assert [next(received).index, next(received).index] == [0, 1]
        with pytest.raises(WorkerError, match="bad sector"):
            next(received)


def test_a_killed_worker_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_ALIVE_CHECK_S", 0.05)
    with DataLoader(NumberedItems(), num_workers=1) as batches:
        next(iter(batches))
        worker = batches.workers[0].pid
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(WorkerError, match="-9"):
            for _ in batches:
                pass


def test_closing_ends_every_worker() -> None:
    with DataLoader(NumberedItems(), num_workers=2) as batches:
        next(iter(batches))
    assert [worker.is_alive() for worker in batches.workers] == [False, False]


def test_workers_bear_the_name_that_torch_gives_them() -> None:
    with DataLoader(NumberedItems(), num_workers=1) as batches:
        next(iter(batches))
        assert Path(f"/proc/{batches.workers[0].pid}/comm").read_text() == "pt_data_worker\n"


def test_decoding_takes_cpu_time_and_not_just_time() -> None:
    before = time.thread_time()
    ImageDataset(ITEM_BYTES, cpu_ms=20).decode()
    assert time.thread_time() - before >= 0.02


def test_items_of_a_file_differ_but_stay_the_same(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(os.urandom(1 << 20))
    dataset = ImageDataset(4096, path=data, buffered=True)
    assert dataset[3] == dataset[3]
    assert len({dataset[index] for index in range(50)}) > 25
