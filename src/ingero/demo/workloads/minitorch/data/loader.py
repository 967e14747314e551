"""The DataLoader: hands out tasks, keeps a few ahead, returns batches in order."""

import contextlib
import itertools
import multiprocessing
import queue
import threading
from dataclasses import dataclass

from ingero.demo.workloads.minitorch.data.arena import Arena
from ingero.demo.workloads.minitorch.data.pin_memory import THREAD_NAME, Pinned, pin_memory_loop
from ingero.demo.workloads.minitorch.data.worker import Dataset, Result, Task, fetch, worker_loop
from ingero.demo.workloads.minitorch.memory import pinned_allocator
from ingero.demo.workloads.minitorch.tensor import Tensor
from ingero.errors import IngeroError

_ALIVE_CHECK_S = 5.0
_JOIN_S = 2.0


class WorkerError(IngeroError):
    """A worker died, or could not fetch an item."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Host memory with one batch; valid until the next batch is asked for."""

    index: int
    pointer: int
    nbytes: int
    is_pinned: bool

    def copy_to(self, device_tensor: Tensor, nbytes: int | None = None, *, non_blocking: bool = True) -> Tensor:
        """Enqueue the copy (of the first nbytes) on the current stream, or make it; then give a pinned block back."""
        copied = self.nbytes if nbytes is None else nbytes
        if non_blocking:
            device_tensor.copy_from_host(self.pointer, copied)
        else:
            device_tensor.copy_from_host_blocking(self.pointer, copied)
        if self.is_pinned:
            pinned_allocator.free_after_copy(self.pointer, self.nbytes)
        return device_tensor


class DataLoader:
    """Endless batches from `dataset`. Workers are forked here, so make it before the CUDA context exists.

    `prefetch_factor` tasks are outstanding for each worker. Without workers, items are fetched by the caller.
    """

    def __init__(
        self, dataset: Dataset, *, num_workers: int = 1, prefetch_factor: int = 2, pin_memory: bool = False
    ) -> None:
        context = multiprocessing.get_context("fork")
        self.dataset = dataset
        self.outstanding = max(1, num_workers * prefetch_factor)
        self.pin_memory = pin_memory and num_workers > 0
        self._arena = Arena(self.outstanding + 1, dataset.nbytes)
        self._results: multiprocessing.queues.Queue[Result | None] = context.Queue()
        self._index_queues = [context.Queue() for _ in range(num_workers)]
        self._pinned: queue.Queue[Pinned] = queue.Queue()
        self._pin_thread: threading.Thread | None = None
        self._next_queue = itertools.cycle(self._index_queues)
        self._sent = self._returned = 0
        self._arrived: dict[int, Pinned] = {}
        self._slot_in_use: int | None = None
        self.workers = [
            context.Process(target=worker_loop, args=(dataset, self._arena, tasks, self._results), daemon=True)
            for tasks in self._index_queues
        ]
        for worker in self.workers:
            worker.start()

    def __enter__(self) -> "DataLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> "DataLoader":
        if self.pin_memory and self._pin_thread is None:
            arguments = (self._arena, self._results, self._pinned)
            self._pin_thread = threading.Thread(target=pin_memory_loop, args=arguments, name=THREAD_NAME, daemon=True)
            self._pin_thread.start()
        if self.workers and not self._sent:
            for _ in range(self.outstanding):
                self._put_index()
        return self

    def __next__(self) -> Batch:
        if self._slot_in_use is not None:
            self._arena.give(self._slot_in_use)
            self._slot_in_use = None
        arrived = self._next_data()
        self._returned += 1
        if self.workers:
            self._put_index()
        return self._batch(arrived)

    def register_memory(self) -> None:
        """Pin the memory that the workers write to; once there is a device."""
        self._arena.register()

    def close(self) -> None:
        """End the workers and the pin thread, by force if they do not follow."""
        for tasks in self._index_queues:
            tasks.put(None)
        if self._pin_thread is not None:
            self._results.put(None)
            self._pin_thread.join(_JOIN_S)
        for worker in self.workers:
            worker.join(_JOIN_S)
            if worker.is_alive():
                worker.kill()
                worker.join()
        for used in (*self._index_queues, self._results):
            used.close()
            used.cancel_join_thread()

    def _put_index(self) -> None:
        next(self._next_queue).put(Task(self._sent, self._arena.take()))
        self._sent += 1

    def _next_data(self) -> Pinned:
        if not self.workers:
            return Pinned(fetch(self.dataset, self._arena, Task(self._returned, self._arena.take())))
        while self._returned not in self._arrived:
            data = self._get_data()
            self._arrived[data.result.task.index] = data
        return self._arrived.pop(self._returned)

    def _get_data(self) -> Pinned:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._try_get_data()
            self._check_workers()

    def _try_get_data(self) -> Pinned:
        if self.pin_memory:
            return self._pinned.get(timeout=_ALIVE_CHECK_S)
        result = self._results.get(timeout=_ALIVE_CHECK_S)
        assert result is not None  # None is only put for the pin thread
        return Pinned(result)

    def _check_workers(self) -> None:
        for worker in self.workers:
            if not worker.is_alive():
                raise WorkerError(
                    f"DataLoader worker {worker.pid} ended with code {worker.exitcode}",
                    hint="a negative code is a signal; -9 is often the kernel's OOM killer: see dmesg",
                )

    def _batch(self, arrived: Pinned) -> Batch:
        if arrived.error is not None:
            raise arrived.error
        task = arrived.result.task
        if arrived.result.failure:
            raise WorkerError(f"item {task.index} could not be loaded:\n{arrived.result.failure}")
        if self.pin_memory:
            self._arena.give(task.slot)
            return Batch(task.index, arrived.pointer, self.dataset.nbytes, is_pinned=True)
        self._slot_in_use = task.slot
        return Batch(task.index, self._arena.address(task.slot), self.dataset.nbytes, is_pinned=False)
