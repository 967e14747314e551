"""The thread that copies fetched batches to pinned memory, so that their copy to the device can run beside work."""

import ctypes
import queue
from ctypes import c_size_t, c_void_p
from dataclasses import dataclass
from multiprocessing.queues import Queue

from ingero.demo.workloads.minitorch import cuda, naming
from ingero.demo.workloads.minitorch.data.arena import Arena
from ingero.demo.workloads.minitorch.data.worker import Result
from ingero.demo.workloads.minitorch.memory import pinned_allocator

THREAD_NAME = "pt_data_pin"

# libc's own, because ctypes.memmove keeps the GIL for the whole copy.
_memcpy = ctypes.CDLL(None).memcpy
_memcpy.argtypes = (c_void_p, c_void_p, c_size_t)


@dataclass(frozen=True, slots=True)
class Pinned:
    """A result whose batch now lies in pinned memory at `pointer`, or the error that prevented it."""

    result: Result
    pointer: int = 0
    error: Exception | None = None


def pin_memory_loop(arena: Arena, results: "Queue[Result | None]", pinned: "queue.Queue[Pinned]") -> None:
    """Pin each result until None arrives."""
    naming.name_this_thread(THREAD_NAME)
    cuda.enter()
    while (result := results.get()) is not None:
        pinned.put(pin_memory(arena, result))


def pin_memory(arena: Arena, result: Result) -> Pinned:
    """Copy a fetched batch to pinned memory."""
    if result.failure:
        return Pinned(result)
    try:
        pointer = pinned_allocator.malloc(arena.slot_bytes)
    except Exception as error:  # raised again by the loader, in the training thread
        return Pinned(result, error=error)
    _memcpy(pointer, arena.address(result.task.slot), arena.slot_bytes)
    return Pinned(result, pointer)
