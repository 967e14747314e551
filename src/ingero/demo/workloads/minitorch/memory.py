"""Device and pinned memory, cached between uses so that a training step allocates nothing."""

import threading
from collections import defaultdict
from collections.abc import Iterator

from ingero.demo.workloads.minitorch import runtime
from ingero.demo.workloads.minitorch.streams import Event

_ROUND_BYTES = 512
_SMALL_BYTES = 1 << 20  # up to here blocks are carved out of segments, as in torch's allocator
_SEGMENT_BYTES = 2 << 20


class _InFlight:
    """Blocks that the device may still use, each behind an event; the oldest come back first."""

    def __init__(self) -> None:
        self._pending: list[tuple[Event, int, int]] = []
        self._spare_events: list[Event] = []

    def add(self, pointer: int, size_bytes: int) -> None:
        """Keep a block until the current stream has passed this point."""
        event = self._spare_events.pop() if self._spare_events else Event()
        event.record()
        self._pending.append((event, pointer, size_bytes))

    def passed(self) -> Iterator[tuple[int, int]]:
        """Yield the blocks that are free by now: one query each, and one that fails."""
        while self._pending and self._pending[0][0].query():
            event, pointer, size = self._pending.pop(0)
            self._spare_events.append(event)
            yield pointer, size


class CachingAllocator:
    """Device memory that keeps freed blocks; cudaMalloc only when none fits, cudaFree only in `empty_cache`."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._whole: set[int] = set()
        self._in_flight = _InFlight()
        # Re-entrant: the garbage collector may free a tensor while this thread allocates another.
        self._lock = threading.RLock()

    def malloc(self, size_bytes: int) -> tuple[int, int]:
        """Return (pointer, rounded size) of a block.

        Raises:
            OutOfMemoryError: the device is full even after every cached block was given back.
        """
        unit = _ROUND_BYTES if size_bytes <= _SMALL_BYTES else _SEGMENT_BYTES
        size = -(-max(size_bytes, 1) // unit) * unit
        with self._lock:
            for pointer, passed in self._in_flight.passed():
                self._free[passed].append(pointer)
            if not self._free[size]:
                self._refill(size)
            return self._free[size].pop(), size

    def free(self, pointer: int, size: int) -> None:
        """Give a block back to the cache."""
        with self._lock:
            self._free[size].append(pointer)

    def free_after_use(self, pointer: int, size: int) -> None:
        """Give a block back that another stream, the current one, may still be using."""
        with self._lock:
            self._in_flight.add(pointer, size)

    def empty_cache(self) -> None:
        """Return every cached large block to the device."""
        with self._lock:
            for blocks in self._free.values():
                for pointer in [p for p in blocks if p in self._whole]:
                    blocks.remove(pointer)
                    self._whole.discard(pointer)
                    runtime.library().cudaFree(pointer)

    def _refill(self, size: int) -> None:
        segment = size if size > _SMALL_BYTES else _SEGMENT_BYTES
        try:
            base = self._cuda_malloc(segment)
        except runtime.OutOfMemoryError:
            self.empty_cache()
            base = self._cuda_malloc(segment)
        if segment == size:
            self._whole.add(base)
        self._free[size].extend(range(base, base + segment - size + 1, size))

    def _cuda_malloc(self, size: int) -> int:
        return runtime.new_handle(runtime.library().cudaMalloc, size)


class PinnedAllocator:
    """Pinned host memory; a block copied from is reused only when the event behind its copy has passed."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._in_flight = _InFlight()
        self._lock = threading.RLock()

    def malloc(self, size_bytes: int) -> int:
        """Return a pinned block of exactly this size."""
        with self._lock:
            for pointer, size in self._in_flight.passed():
                self._free[size].append(pointer)
            if self._free[size_bytes]:
                return self._free[size_bytes].pop()
        return runtime.new_handle(runtime.library().cudaHostAlloc, size_bytes, 0)

    def free_after_copy(self, pointer: int, size_bytes: int) -> None:
        """Give a block back that the current stream may still be copying from."""
        with self._lock:
            self._in_flight.add(pointer, size_bytes)


device_allocator = CachingAllocator()
pinned_allocator = PinnedAllocator()
