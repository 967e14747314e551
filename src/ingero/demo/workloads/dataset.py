"""A dataset of images: read from nowhere, a file or a store over TCP, then decoded on the CPU."""

import mmap
import os
import random
import socket
import time
from pathlib import Path

from ingero.demo.workloads import store
from ingero.demo.workloads.host_knobs import HostKnobs

_PAGE_BYTES = 4096


class ImageDataset:
    """Items of `nbytes`; each costs one read and `cpu_ms` of CPU time in whichever process asks for it.

    With `path`, bytes come from a random page of that file: past the page cache (O_DIRECT), or through it with
    `buffered`. With `address`, they come from the store listening there. With `knobs`, `worker_sleep_ms` is slept
    before each read, as a stalled network mount would.
    """

    def __init__(
        self,
        nbytes: int,
        *,
        cpu_ms: float = 0.0,
        path: Path | None = None,
        buffered: bool = False,
        address: tuple[str, int] | None = None,
        knobs: HostKnobs | None = None,
    ) -> None:
        self.nbytes = nbytes
        self.cpu_ms = cpu_ms
        self.path = path
        self.buffered = buffered
        self.address = address
        self.knobs = knobs
        self._connection: socket.socket | None = None
        self._pages: mmap.mmap | None = None

    def __getitem__(self, index: int) -> bytes:
        raw = self.read(index)
        self.decode()
        return raw

    def extra(self) -> bytes:
        """The bytes that are sent through the workers' pipe; the item itself lies in shared memory."""
        return bytes(int(self.knobs.read().item_bytes)) if self.knobs is not None else b""

    def read(self, index: int) -> bytes:
        """Return the item's encoded bytes; empty when they come from nowhere."""
        if self.knobs is not None:
            self.wait_for_storage(self.knobs.read().worker_sleep_ms)
        if self.address is not None:
            return self.read_store(self.address)
        if self.path is not None:
            return self.read_file(self.path, index)
        return b""

    def wait_for_storage(self, sleep_ms: float) -> None:
        """Sleep as long as the slow storage of the moment takes."""
        if sleep_ms > 0:
            time.sleep(sleep_ms / 1000)

    def read_file(self, path: Path, index: int) -> bytes:
        """Read `nbytes` at a place that only `index` decides, so that runs are comparable."""
        if self._pages is None:
            self._pages = mmap.mmap(-1, -(-self.nbytes // _PAGE_BYTES) * _PAGE_BYTES)  # O_DIRECT wants whole pages
        descriptor = os.open(path, os.O_RDONLY | (0 if self.buffered else os.O_DIRECT))
        try:
            pages = max(1, (os.fstat(descriptor).st_size - len(self._pages)) // _PAGE_BYTES)
            os.preadv(descriptor, [self._pages], random.Random(index).randrange(pages) * _PAGE_BYTES)
        finally:
            os.close(descriptor)
        return self._pages[: self.nbytes]

    def read_store(self, address: tuple[str, int]) -> bytes:
        """Fetch `nbytes` over this process's own connection."""
        if self._connection is None:
            self._connection = socket.create_connection(address)
        return store.fetch(self._connection, self.nbytes)

    def decode(self) -> None:
        """Burn the CPU time that decoding and augmenting take, measured as CPU time so that contention prolongs it."""
        more_ms = self.knobs.read().worker_cpu_ms if self.knobs is not None else 0.0
        end = time.thread_time() + (self.cpu_ms + more_ms) / 1000
        pixel = 0
        while time.thread_time() < end:
            for value in range(100):
                pixel += value * value
