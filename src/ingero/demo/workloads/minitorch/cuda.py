"""The CUDA functions that a training script calls: set-up, streams, synchronization, the allocator's cache."""

import ctypes

from ingero.demo.workloads.minitorch import runtime
from ingero.demo.workloads.minitorch.memory import device_allocator
from ingero.demo.workloads.minitorch.streams import Event, Stream, current_stream, use

__all__ = ["Event", "Stream", "current_stream", "empty_cache", "enter", "init", "stream", "synchronize"]

stream = use


_device = 0


def init(device: int = 0) -> None:
    """Create the context on `device` (0-based; counted round, so that more ranks than devices share them)."""
    global _device  # noqa: PLW0603 the device of the process, as in torch
    count = ctypes.c_int()
    runtime.library().cudaGetDeviceCount(ctypes.byref(count))
    _device = device % max(1, count.value)
    enter()
    runtime.library().cudaFree(None)  # the customary first call that makes the context


def enter() -> None:
    """Bind the calling thread to the process's device; every thread that launches does it once."""
    runtime.library().cudaSetDevice(_device)


def synchronize() -> None:
    """Wait for all work of this process on the device."""
    runtime.library().cudaDeviceSynchronize()


def empty_cache() -> None:
    """Return the allocator's cached blocks to the device."""
    device_allocator.empty_cache()
