"""Stack samples of threads outside traced calls: running ones (sampled by the kernel side) and sleeping ones."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence, Set
from types import TracebackType
from typing import Any

import numpy as np

from ingero.attach.cpu_samples import VARIED_NS
from ingero.attach.kernel_side import KernelSide
from ingero.attach.libbpf import BpfError
from ingero.capture.loop.clocks import WallClock
from ingero.capture.processes.traced_processes import TracedProcesses
from ingero.capture.records.rows import Sink
from ingero.capture.stacks.blocked_samples import TICK_S, BlockedSample, BlockedSampler
from ingero.capture.stacks.process_stacks import ProcessStacks
from ingero.capture.stacks.stacks import Stacks
from ingero.discover import kernel_clock
from ingero.events import THREAD_STATES, SampleFlag
from ingero.foreign_text import decoded
from ingero.store.writing import tables

logger = logging.getLogger(__name__)

_RUN = THREAD_STATES.index("run")
_MAX_WAITING = 1024  # the recorder's loop takes them several times a second; it may be held up for some seconds
_LAST_PASS_S = 0.5  # a look takes a few ms; one that waits for somebody is left behind
_SELDOM_NS = 1_000_000_000
_LONGEST_NS = 1_000_000_000  # that a look stands for: after it the agent was stopped, and knows nothing


class StackSamples:
    """The stack samples of a recording. Use as a context manager: inside it, sleeping threads are sampled.

    halted: numbers of processes that make no traced calls any more, and of those they wait for. Where stacks are given
    up, theirs are read all the same, once a second: no hang is reported without its line, and they cost nothing else.
    """

    def __init__(
        self,
        kernel: KernelSide,
        sink: Sink,
        clock: WallClock,
        traced_processes: TracedProcesses,
        stacks: Stacks,
        *,
        halted: Callable[[], Set[int]],
    ) -> None:
        self._halted = halted
        self._kernel, self._sink, self._clock, self._traced_processes, self._stacks = (
            kernel,
            sink,
            clock,
            traced_processes,
            stacks,
        )
        self._blocked: deque[BlockedSample] = deque()
        self._sampler = BlockedSampler(
            self._process_of, kernel.layouts.dtype("parked_thread"), lambda rows: sink.append(tables.STACKS, rows)
        )
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_blocked, name="ingero-samples", daemon=True)

    def add_running(self, batch: np.ndarray[Any, Any], numbers: list[int]) -> None:
        """Writes samples of running threads (ring `samples`). numbers: of their processes.

        Only a tick stands for time: a thread sampled because another one called stands for none.
        """
        is_tick = batch["state"] == _RUN
        weights_ns = np.zeros(len(batch), np.int64)
        if self._kernel.samples:
            weights_ns[is_tick] = self._kernel.samples.periods_ns(batch["time_ns"][is_tick])
        rows = tables.SAMPLES.rows(
            len(batch),
            session=self._sink.session,
            time_ns=self._clock.unix_ns(batch["time_ns"]),
            process=numbers,
            pid=batch["pid"],
            tid=batch["tid"],
            comm=[self._sink.intern(decoded(raw)) for raw in batch["comm"].tolist()],
            state=batch["state"],
            weight_ns=weights_ns,
            is_collecting=(batch["flags"] & SampleFlag.COLLECTING).astype(np.int64),
            stack_hash=self._stacks.hashes(numbers, batch["python_stack"], batch["native_stack"]),
        )
        self._sink.append(tables.SAMPLES, rows)

    def write_blocked(self) -> None:
        """Writes the samples of sleeping threads; to be called by the thread that updates the clock."""
        found = [self._blocked.popleft() for _ in range(len(self._blocked))]
        if not found:
            return
        numbers = [one.process for one in found]
        walked = self._stacks.hashes(numbers, np.array([one.python_stack for one in found], np.uint64))
        rows = tables.SAMPLES.rows(
            len(found),
            session=self._sink.session,
            time_ns=[self._clock.unix_ns_of(one.time_ns) for one in found],
            process=numbers,
            pid=[one.pid for one in found],
            tid=[one.tid for one in found],
            comm=[self._sink.intern(one.comm) for one in found],
            state=[one.state for one in found],
            weight_ns=[one.weight_ns for one in found],
            stack_hash=[known or one.stack_hash for known, one in zip(walked, found, strict=True)],
        )
        self._sink.append(tables.SAMPLES, rows)

    def _sample_blocked(self) -> None:
        last_ns = varied_ns = kernel_clock.monotonic_ns()
        is_refused = False
        while not self._is_ended.wait(TICK_S):
            now_ns = kernel_clock.monotonic_ns()
            halted = self._halted() if self._kernel.are_stacks_off else None
            if self._kernel.samples is None or not self._kernel.is_running or halted == set():
                last_ns = now_ns
                continue
            if halted and now_ns - last_ns < _SELDOM_NS:
                continue
            elapsed_ns, last_ns = min(now_ns - last_ns, _LONGEST_NS), now_ns
            try:
                if now_ns - varied_ns >= VARIED_NS:
                    self._kernel.samples.vary(now_ns=now_ns, elapsed_ns=now_ns - varied_ns)
                    varied_ns = now_ns
                self._hold(self._sampler.sample(self._kernel.samples.blocked(), elapsed_ns, only=halted))
            except BpfError as error:  # the machine is short of memory or descriptors, and will not be for ever
                self._stacks.count_unresolved()
                if not is_refused:
                    logger.warning("sleeping threads cannot be read: %s", error)
                is_refused = True
            except Exception:
                # what a damaged or dying process leads to must not end the thread; it is counted and shown
                logger.exception("sleeping threads could not be read")
                self._stacks.count_unresolved()
            else:
                is_refused = False

    def _hold(self, found: Sequence[BlockedSample]) -> None:
        """Keeps samples for `write_blocked`; those without room are counted."""
        room = max(0, _MAX_WAITING - len(self._blocked))
        self._blocked += found[:room]
        for _ in found[room:]:
            self._stacks.count_unresolved()

    def _process_of(self, pid: int) -> tuple[int, ProcessStacks] | None:
        traced_process = self._traced_processes.of_pid(pid)
        process = self._stacks.process_of(traced_process.number) if traced_process else None
        return (traced_process.number, process) if traced_process and process else None

    def __enter__(self) -> StackSamples:
        self._thread.start()
        return self

    def end(self) -> None:
        """Stops sampling."""
        self._is_ended.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._thread.join(_LAST_PASS_S)
