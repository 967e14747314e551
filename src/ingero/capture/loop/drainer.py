"""Drains the BPF rings: waits until one fills or something is due, and hands their records to consumers."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import numpy as np

from ingero.attach.kernel_side import KernelSide
from ingero.attach.objects import object_path
from ingero.capture.budget.offcpu_pace import OffcpuPace
from ingero.capture.loop.rings import DRAIN_LIMIT, Backlog, Ring
from ingero.capture.loop.salvage import Salvage
from ingero.decode.btf import btf_of
from ingero.discover import kernel_clock

Consumer = Callable[[np.ndarray[Any, Any]], None]

_POLL_NS = 5_000_000  # whether other work is done
DRAIN_NS = 250_000_000  # turning records into rows costs nearly the same for one of them and for a hundred
# Sync intervals are not needed before a second ends, and each batch of a stream is judged beside the 64
# before it.
_UNHURRIED = frozenset({"sync_intervals", "steps", "marks"})
_FILLED = 1 / 16  # of a ring; whatever fits into an empty one between two looks nearly fits on top of that
_RECORD_OF_RING = {
    "calls": "call_record",
    "sync_intervals": "sync_interval_record",
    "steps": "step_record",
    "marks": "mark_record",
    "sequence": "sequence_record",
    "offcpu": "offcpu_record",
    "host": "host_record",
    "lifecycle": "lifecycle_record",
    "nccl": "communicator_record",
    "python_code": "python_code_record",
    "python_stacks": "python_stack_record",
    "native_stacks": "native_stack_record",
    "samples": "sample_record",
    "kernel_names": "kernel_name_record",
}


class Drainer:
    """Drains all rings of a recording. consumers: by ring, takes its batches; salvage: handles records that raise."""

    def __init__(self, kernel: KernelSide, consumers: Mapping[str, Consumer], salvage: Salvage) -> None:
        self._kernel, self._consumers, self._salvage = kernel, consumers, salvage
        self._resources = ExitStack()
        self.rings = {
            name: self._resources.enter_context(Ring(kernel.maps[name], kernel.layouts.dtype(record, header_bytes=8)))
            for name, record in _RECORD_OF_RING.items()
            if name in kernel.maps  # without the programs that fill it there is none
        }
        self._poll = select.epoll()
        self._resources.callback(self._poll.close)
        for ring in self.rings.values():
            # edge-triggered: a ring with data would always be ready, and the loop would spin
            self._poll.register(ring.fd, select.EPOLLIN | select.EPOLLET)
        self._pace = OffcpuPace(slots=btf_of(object_path("scheduler")).dtype("thread")["offcpu"].shape[0])
        self._emptied_ns = self._drained_ns = kernel_clock.monotonic_ns()
        self.threads = b""  # of each a `struct thread_dump`, as its buffer was last emptied
        self._is_behind = False
        self.drain_ns = DRAIN_NS

    def wait(self, until_ns: int) -> None:
        """Waits until something is due (`until_ns`, monotonic, at the latest) or a ring fills, then drains."""
        due_ns = min(until_ns, self._drained_ns + self.drain_ns, self._emptied_ns + self._pace.period_ns)
        wait_ns = 0 if self._is_behind else max(0, due_ns - kernel_clock.monotonic_ns())
        filled = {fd for fd, _ in self._poll.poll(wait_ns / 1e9)}
        now_ns = kernel_clock.monotonic_ns()
        if now_ns - self._emptied_ns >= self._pace.period_ns:
            self.empty_buffers()
        if self._is_behind or now_ns - self._drained_ns >= self.drain_ns:
            self.drain(self._hurried_rings())
            self._drained_ns = now_ns
        elif filled:
            self.drain(filled)

    def _hurried_rings(self) -> set[int]:
        """The rings that are drained before the second ends."""
        return {ring.fd for name, ring in self.rings.items() if name not in _UNHURRIED or ring.fill_ratio > _FILLED}

    @contextmanager
    def draining_during(self, work: Callable[[], None]) -> Iterator[None]:
        """Runs `work` on another thread and keeps draining until it is done; the block runs first.

        Attaching and detaching take long enough to fill the threads' buffers.
        """
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="attaching") as other:
            working = other.submit(work)
            yield
            while not working.done():
                self.wait(kernel_clock.monotonic_ns() + _POLL_NS)
            working.result()

    def drain(self, filled: Container[int] | None = None) -> None:
        """Hands over the records in the rings, up to DRAIN_LIMIT of each. filled: only rings with these descriptors.

        Starts and ends of processes are read last, so that every process of the other records is among them, and handed
        over first, because rows name processes.
        """
        chosen = {name: ring for name, ring in self.rings.items() if filled is None or ring.fd in filled}
        batches = {name: ring.drain() for name, ring in chosen.items() if name != "lifecycle"}
        batches = {"lifecycle": self.rings["lifecycle"].drain(), **batches}
        self._is_behind = any(len(batch) == DRAIN_LIMIT for batch in batches.values())
        for name, batch in batches.items():
            if len(batch):
                self._salvage.records(name, self._consumers[name], batch)

    def backlog(self) -> Backlog:
        """The records that the rings hold now and are not handed over."""
        return Backlog(tuple((ring, ring.produced_bytes) for ring in self.rings.values()))

    def drain_backlog(self) -> None:
        """Hands over all records that the rings hold now."""
        backlog = self.backlog()
        self.drain()
        while self._is_behind and not backlog.is_drained:
            if kernel_clock.monotonic_ns() - self._emptied_ns >= self._pace.period_ns:
                self.empty_buffers()
            self.drain()

    def drain_all(self) -> None:
        """Hands over all records until the rings are empty; for rings that nothing fills any more."""
        self.drain()
        while self._is_behind:
            self.drain()

    def empty_buffers(self) -> None:
        """Moves the off-CPU intervals of threads that make no traced calls into the ring, before they overflow."""
        now_ns, cpu_ns = kernel_clock.monotonic_ns(), time.thread_time_ns()
        ring = self.rings["offcpu"]
        begin = ring.produced_bytes
        self.threads = self._kernel.read_threads()
        emptied = ring.records_since(begin)["tid"].tolist()
        self._pace.note(emptied, elapsed_ns=now_ns - self._emptied_ns, cost_ns=time.thread_time_ns() - cpu_ns)
        self._emptied_ns = now_ns

    def empty_buffers_soon(self) -> None:
        """Empties the threads' off-CPU buffers soon, and often until they have proved to fill slowly."""
        self._pace.restart()

    def __enter__(self) -> Drainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()
