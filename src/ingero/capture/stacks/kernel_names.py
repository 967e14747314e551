"""Resolves the names of launched GPU kernels in a thread of its own, and stores each once.

Nothing of this runs on the thread that drains the rings but a look at a set.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ingero.capture.foreign.native_reader import NativeReader
from ingero.capture.loop.clocks import WallClock
from ingero.capture.loop.worker import Worker
from ingero.capture.processes.traced_processes import TracedProcess
from ingero.capture.stacks.mapped_files import MappedFiles
from ingero.capture.stacks.process_kernels import KernelName, NameSource, ProcessKernels
from ingero.foreign_text import decoded
from ingero.ops import BY_ID, KernelNameRole, Kind
from ingero.store.writing import tables
from ingero.store.writing.tables import Row

Array = np.ndarray[Any, Any]

_PATIENCE_S = 3.0  # the rings are drained four times a second
_LAUNCHES = np.array([op.id for op in BY_ID.values() if op.kind & Kind.LAUNCH])

_Kernel = tuple[int, int, int]  # process number, function, generation


class KernelNames:
    """Resolves the kernel names of a recording while its `worker` is entered; leaving it stores those still waiting.

    store: takes rows of `raw_kernels`, from the worker's thread. reader: reads the files that processes map.
    """

    def __init__(
        self, store: Callable[[Sequence[Row]], object], clock: WallClock, reader: NativeReader | None = None
    ) -> None:
        self._store, self._clock = store, clock
        self._files = MappedFiles(reader)
        self._processes: dict[int, ProcessKernels] = {}
        self._unresolved: dict[_Kernel, tuple[float, int]] = {}  # since when; launched after, unix ns
        self._stored: dict[_Kernel, str] = {}
        self._unnamed: dict[_Kernel, int] = {}  # stored without a name, which may still be reported
        self._ended: dict[int, float] = {}
        self._seen: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)  # functions and generations, by process
        self._noted: defaultdict[int, set[int]] = defaultdict(set)  # functions, by process
        self.worker = Worker("ingero-kernels", self._settle, failed="kernel_names_not_resolved")

    def begin(self, traced_process: TracedProcess) -> None:
        """Notes that a process is traced from now on."""
        number, pid = traced_process.number, traced_process.pid
        self.worker.do(lambda: self._begin(number, pid), is_needed=True)

    def on_exec(self, traced_process: TracedProcess) -> None:
        """Notes an exec: addresses and handles of the process mean something else from now on."""
        number = traced_process.number
        self._seen.pop(number, None)
        self._noted.pop(number, None)
        self.worker.do(lambda: self._executed(number), is_needed=True)

    def on_fork(self, parent: TracedProcess | None, child: TracedProcess) -> None:
        """Copies the parent's host stubs and mappings to the child, however soon it ends."""
        if parent is not None:
            numbers, pids = (parent.number, child.number), (parent.pid, child.pid)
            self.worker.do(lambda: self._inherit(numbers, pids), is_needed=True)

    def end(self, traced_process: TracedProcess) -> None:
        """Notes that a process has ended; records still on their way are waited for."""
        number = traced_process.number
        now = time.monotonic()
        self.worker.do(lambda: self._ended.update({number: now}), is_needed=True)

    def add(self, batch: Array, numbers: list[int]) -> None:
        """Takes records of kernel names (`struct kernel_name_record`). numbers: the processes of the records."""
        now = time.monotonic()
        self.worker.do(lambda: self._add(batch, numbers, now))

    def note(self, batch: Array, numbers: list[int]) -> None:
        """Takes recorded calls (`struct call_record`): reads files of launched functions before their process ends."""
        launches = np.flatnonzero((batch["function"] != 0) & np.isin(batch["op"], _LAUNCHES))
        functions, pids = batch["function"].tolist(), batch["pid"].tolist()
        new = {(numbers[i], functions[i]): pids[i] for i in launches.tolist()}
        new = {place: pid for place, pid in new.items() if place[1] not in self._noted[place[0]]}
        if new:
            for number, function in new:
                self._noted[number].add(function)
            self.worker.do(lambda: self._read_files(new))

    def want(self, launched: Iterable[tuple[TracedProcess, int, int]], since_ns: int) -> None:
        """Notes launches of (traced process, function, generation); new ones not before `since_ns` (unix)."""
        new = {
            (traced_process.number, function, generation): traced_process.pid
            for traced_process, function, generation in launched
        }
        new = {kernel: pid for kernel, pid in new.items() if kernel[1:] not in self._seen[kernel[0]]}
        if new:
            for number, function, generation in new:
                self._seen[number].add((function, generation))
            now = time.monotonic()
            self.worker.do(lambda: self._want(new, since_ns, now))

    def _process(self, number: int, pid: int) -> ProcessKernels:
        if number not in self._processes:
            self._processes[number] = ProcessKernels(self._files.add(number, pid), self._files.symbols)
        return self._processes[number]

    def _begin(self, number: int, pid: int) -> None:
        self._process(number, pid)
        self._files[number].read_mappings()

    def _executed(self, number: int) -> None:
        self._store_known(math.inf)  # with what was known of the program before
        self._processes.pop(number, None)
        self._files.forget(number)
        self._unnamed = {kernel: ns for kernel, ns in self._unnamed.items() if kernel[0] != number}

    def _inherit(self, numbers: tuple[int, int], pids: tuple[int, int]) -> None:
        parent = self._process(numbers[0], pids[0])
        self._process(numbers[1], pids[1]).inherit(parent)
        self._files[numbers[1]].inherit(self._files[numbers[0]])

    def _read_files(self, places: dict[tuple[int, int], int]) -> None:
        for (number, function), pid in places.items():
            self._process(number, pid)
            self._files[number].module_at(function)

    def _add(self, batch: Array, numbers: list[int], now: float) -> None:
        columns = (batch[name].tolist() for name in ("pid", "role", "handle", "generation", "time_ns", "source"))
        names = zip(batch["name"].tolist(), batch["is_cut"].tolist(), strict=True)
        for number, pid, role, handle, generation, time_ns, source, (raw, is_cut) in zip(
            numbers, *columns, names, strict=True
        ):
            process = self._process(number, pid)
            name = decoded(raw)
            if role == KernelNameRole.REGISTERED:
                process.register(handle, name, is_cut=bool(is_cut))
                self._files[number].module_at(handle)  # its file, while the process lives
            elif role == KernelNameRole.MADE:
                process.make_handle(handle, generation, time_ns, source)
            else:
                process.name_handle(handle, generation, time_ns, name, is_cut=bool(is_cut))
            late = self._unnamed.pop((number, handle, generation), None)
            if late is not None:
                self._unresolved[number, handle, generation] = (now, late)

    def _want(self, kernels: dict[_Kernel, int], since_ns: int, now: float) -> None:
        for kernel, pid in kernels.items():
            self._process(kernel[0], pid)
            self._unresolved[kernel] = (now, since_ns)

    def _settle(self, until: float) -> None:
        self._store_known(until)
        over = {number for number, since in self._ended.items() if until - since > 2 * _PATIENCE_S}
        if over:
            self._forget(over)
        self._files.close_unused(until)

    def _store_known(self, until: float) -> None:
        """Stores kernels with a known name, and those that waited too long with what is known."""
        for kernel, (since, since_ns) in list(self._unresolved.items()):
            del self._unresolved[kernel]  # first, so that one that cannot be resolved does not keep the others
            number, function, generation = kernel
            name = self._processes[number].name(function, generation)
            if not name.is_final and until - since < _PATIENCE_S:
                self._unresolved[kernel] = (since, since_ns)
                continue
            if not name.is_final:
                self._unnamed[kernel] = since_ns
            if name.is_final and name.text is not None and self._stored.setdefault(kernel, name.text) != name.text:
                name = KernelName(None, name.library, NameSource.AMBIGUOUS)  # another program, or another file there
            self._store(self._rows(kernel, name, since_ns))

    def _forget(self, numbers: set[int]) -> None:
        """Forgets processes that have ended; their numbers are not reused."""
        for number in numbers:
            self._files.forget(number)
            for known in (self._processes, self._seen, self._noted, self._ended):
                known.pop(number, None)
        self._unresolved = {kernel: since for kernel, since in self._unresolved.items() if kernel[0] not in numbers}
        self._unnamed = {kernel: ns for kernel, ns in self._unnamed.items() if kernel[0] not in numbers}
        self._stored = {kernel: text for kernel, text in self._stored.items() if kernel[0] not in numbers}

    def _rows(self, kernel: _Kernel, name: KernelName, launched_ns: int) -> Sequence[Row]:
        number, function, generation = kernel
        named_ns = self._processes[number].since_ns(function, generation)
        since_ns = self._clock.unix_ns_of(named_ns) if named_ns else launched_ns
        return tables.KERNELS.rows(
            1,
            process=number,
            function=function,
            generation=generation,
            since_ns=since_ns if generation else 0,
            name=name.text,
            short_name=name.short,
            library=name.library,
            source_of_name=name.source.value,
        )
