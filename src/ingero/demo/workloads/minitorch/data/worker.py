"""The loop of a forked DataLoader worker: take an index, fetch the item, return it."""

import signal
import traceback
from dataclasses import dataclass
from multiprocessing.queues import Queue
from typing import Protocol

from ingero.demo.workloads.minitorch import naming
from ingero.demo.workloads.minitorch.data.arena import Arena


class Dataset(Protocol):
    """What a program gives a loader: items of `nbytes`, and what is sent along with each."""

    nbytes: int

    def __getitem__(self, index: int, /) -> bytes:
        """The item, whole or empty."""

    def extra(self) -> bytes:
        """The bytes that go through the pipe of the workers."""


@dataclass(frozen=True, slots=True)
class Task:
    """Item `index`, to be put into `slot` of the arena."""

    index: int
    slot: int


@dataclass(frozen=True, slots=True)
class Result:
    """A fetched item; `failure` is the worker's traceback if there is no item, `extra` what is sent along with it."""

    task: Task
    failure: str = ""
    extra: bytes = b""


def fetch(dataset: Dataset, arena: Arena, task: Task) -> Result:
    """Load one item into its slot; an exception becomes the result, to be raised where the batch is used."""
    try:
        arena.write(task.slot, dataset[task.index])
    except Exception:  # the loader raises it in the training process
        return Result(task, traceback.format_exc())
    return Result(task, extra=dataset.extra())


def worker_loop(
    dataset: Dataset, arena: Arena, index_queue: "Queue[Task | None]", result_queue: "Queue[Result | None]"
) -> None:
    """Serve tasks until None arrives."""
    naming.die_with_parent()
    naming.name_this_thread("pt_data_worker")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the trainer ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while (task := index_queue.get()) is not None:
        result_queue.put(fetch(dataset, arena, task))
