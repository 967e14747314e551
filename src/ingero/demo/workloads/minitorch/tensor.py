"""Tensors without numbers: a block of device memory, and where it came from."""

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ingero.demo.workloads.minitorch import runtime
from ingero.demo.workloads.minitorch.memory import device_allocator, pinned_allocator
from ingero.demo.workloads.minitorch.streams import current_stream

Backward = Callable[[], None]
ELEMENT_BYTES = 4


class _Mode(threading.local):
    grad = True


_mode = _Mode()


@contextmanager
def no_grad() -> Iterator[None]:
    """Record no backward functions inside the with-block, in this thread only."""
    before, _mode.grad = _mode.grad, False
    try:
        yield
    finally:
        _mode.grad = before


class Tensor:
    """A block of device memory; `grad_fn` is the newest entry of its recorded operations, or None."""

    __slots__ = ("_is_shared", "_size", "grad_fn", "nbytes", "pointer")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.pointer, self._size = device_allocator.malloc(nbytes)
        self._is_shared = False
        self.grad_fn: Node | None = None

    def __del__(self) -> None:
        if not hasattr(self, "_size"):  # the allocation itself failed
            return
        free = device_allocator.free_after_use if self._is_shared else device_allocator.free
        free(self.pointer, self._size)

    def record_stream(self) -> None:
        """Say that a second stream uses it: its block is reused only when an event there has passed."""
        self._is_shared = True

    def follows(self, source: "Tensor", backward: Backward) -> "Tensor":
        """Record that this tensor was made from `source`; `backward` launches the gradient's kernels."""
        if _mode.grad:
            self.grad_fn = Node(backward, source.grad_fn)
        return self

    def copy_from_host(self, pointer: int, nbytes: int) -> "Tensor":
        """Enqueue a copy from host memory on the current stream."""
        copy = runtime.library().cudaMemcpyAsync
        copy(self.pointer, pointer, nbytes, runtime.HOST_TO_DEVICE, current_stream())
        return self

    def copy_from_host_blocking(self, source: int, nbytes: int) -> None:
        """Copy with one call that returns when the bytes have moved."""
        runtime.library().cudaMemcpy(self.pointer, source, nbytes, runtime.HOST_TO_DEVICE)

    def copy_to_host(self) -> None:
        """Enqueue a copy of the first element to pinned memory on the current stream."""
        copy = runtime.library().cudaMemcpyAsync
        copy(_staging(), self.pointer, ELEMENT_BYTES, runtime.DEVICE_TO_HOST, current_stream())

    def copy_to_ordinary_host(self) -> None:
        """Copy the first element to memory that is not pinned: asynchronous by name, and waited for."""
        copy = runtime.library().cudaMemcpyAsync
        copy(_ordinary(), self.pointer, ELEMENT_BYTES, runtime.DEVICE_TO_HOST, current_stream())

    def copy_to_host_blocking(self) -> None:
        """Copy the first element with one call that returns when it has arrived."""
        runtime.library().cudaMemcpy(_staging(), self.pointer, ELEMENT_BYTES, runtime.DEVICE_TO_HOST)

    def item(self) -> float:
        """Return the value on the host: a copy, then a wait for the stream."""
        self.copy_to_host()
        runtime.library().cudaStreamSynchronize(current_stream())
        return 0.0


@functools.cache
def _staging() -> int:
    return pinned_allocator.malloc(4096)


_ELEMENT = ctypes.create_string_buffer(ELEMENT_BYTES)


def _ordinary() -> int:
    return ctypes.addressof(_ELEMENT)


class Node:
    """One recorded operation and the one before it."""

    __slots__ = ("apply", "before")

    def __init__(self, apply: Backward, before: "Node | None") -> None:
        self.apply = apply
        self.before = before
