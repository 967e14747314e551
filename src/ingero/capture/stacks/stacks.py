"""Stacks of recorded calls: taken by the kernel side, resolved here in a thread of its own, stored once each.

The kernel side sends a stack, and a code object, the first time it sees it, and its hash with every call. The parts
come through rings of their own, so a call may arrive before its stack: it waits here for a moment. Nothing of this runs
on the thread that drains the rings.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ingero.attach.kernel_side import KernelSide
from ingero.capture.foreign.native_reader import NativeReader
from ingero.capture.loop.worker import Worker
from ingero.capture.processes.traced_processes import TracedProcess
from ingero.capture.stacks.deciding_words import MAYBE_OTHER, DecidingWords
from ingero.capture.stacks.freed_code import FreedCode
from ingero.capture.stacks.hung_calls import HungCalls
from ingero.capture.stacks.mapped_files import MappedFiles
from ingero.capture.stacks.process_stacks import ProcessStacks
from ingero.capture.stacks.python_layouts import layout_row
from ingero.capture.stacks.stack_frames import MergedStack, merge, stack_row
from ingero.discover.interpreters import Interpreter, UnreadableInterpreter
from ingero.discover.waiting import call_kinds
from ingero.events import INTERPRETER_LOCK, PAGE_FAULT
from ingero.store.writing.tables import Row

Array = np.ndarray[Any, Any]

_MAX_SEEN = 1 << 16  # stacks of a process, 0.3 KB each: samples find new ones for as long as it runs
_MAX_KEPT = 4096  # stacks for `known`, about 2 KB each
_MAYBE_OTHER = "native frames may be those of another call from the same place"
_PATIENCE_S = 3.0  # the rings are drained four times a second
_SETTLING_S = 0.05  # at a time: until a copy is answered, calls of its place cannot be distinguished
_HASH_MASK = (1 << 63) - 1  # hashes are stored as signed integers, 0 is none
_LOWEST_FUTEX = 4096  # bpf/events.h: below it stands 2 * (number of another system call) + 2
_CALL_KINDS = np.zeros(_LOWEST_FUTEX, np.uint64)
_CALL_KINDS[[2 * number + 2 for number in call_kinds()]] = list(call_kinds().values())
_PRIME = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: spreads the process number over all bits


@dataclass(frozen=True, slots=True)
class _PendingStack:
    """A stack to be stored: process number, hashes of its Python and native parts."""

    process: int
    python: int
    native: int


class Stacks:
    """Resolves the stacks of a recording while its `worker` is entered; leaving it stores those still waiting.

    store: takes rows of `raw_stacks`, from the worker's thread. keeps: whether `known` can be asked. reader: reads
    the files that processes map. without_lines: called once, in that thread, with each interpreter that cannot be read.
    """

    def __init__(
        self,
        kernel: KernelSide,
        store: Callable[[Sequence[Row]], object],
        *,
        keeps: bool = False,
        reader: NativeReader | None = None,
        without_lines: Callable[[UnreadableInterpreter], object] = lambda _: None,
    ) -> None:
        self._kernel, self._store, self._without_lines = kernel, store, without_lines
        self._layout_type = kernel.layouts.dtype("python_layout")
        self._files = MappedFiles(reader)
        answers, seen = kernel.maps["deciding"], kernel.maps["seen_python"]
        self._deciding = DecidingWords(answers, seen, kernel.layouts.dtype("deciding_words"))
        self._freed = FreedCode(kernel, self._files.reader.memory)
        self._processes: dict[int, ProcessStacks] = {}
        self._starting: dict[int, TracedProcess] = {}
        self._ended: dict[int, float] = {}  # by process number: when
        self._pending: dict[_PendingStack, float] = {}
        self._seen: dict[int, set[tuple[int, int, int]]] = defaultdict(set)  # by process number
        self._keeps = keeps
        self._kept: dict[int, MergedStack] = {}  # by hash
        self.interpreters: dict[int, Interpreter | UnreadableInterpreter | None] = {}  # by pid; None: it is no Python
        self._unreadable: set[UnreadableInterpreter] = set()
        self.worker = Worker("ingero-stacks", self._settle, failed="stacks_not_resolved")
        self.hung = HungCalls(self.worker.do, self._processes.get, store)

    def known(self, stack_hash: int) -> MergedStack | None:
        """The stack with this hash, if resolved; the oldest are forgotten beyond a limit."""
        return self._kept.get(stack_hash)

    def count_unresolved(self) -> None:
        """Counts a stack that could not be resolved elsewhere."""
        self.worker.count("stacks_not_resolved")

    def begin(self, traced_process: TracedProcess) -> None:
        """Notes that a process is traced, or runs another program, from now on."""
        self.worker.do(lambda: self._begin(traced_process), is_needed=True)

    def on_fork(self, parent: TracedProcess | None, child: TracedProcess) -> None:
        """Notes a fork: the child has its parent's interpreter and mappings, however soon it ends."""
        self.worker.do(lambda: self._inherit(parent, child), is_needed=True)

    def end(self, traced_process: TracedProcess) -> None:
        """Notes that a process has ended; records still on their way are waited for."""
        now = time.monotonic()
        self.worker.do(lambda: self._end(traced_process, now), is_needed=True)

    def add_code(self, batch: Array, number_of: Callable[[int], int]) -> None:
        """Takes records of ring `python_code`. number_of: the process number of a slot."""
        self._each(batch, number_of, ProcessStacks.add_code)

    def add_python(self, batch: Array, number_of: Callable[[int], int]) -> None:
        """Takes records of ring `python_stacks`."""
        self._each(batch, number_of, ProcessStacks.add_python)

    def add_native(self, batch: Array, number_of: Callable[[int], int]) -> None:
        """Takes records of ring `native_stacks`."""
        self._each(batch, number_of, ProcessStacks.add_native)

    def hashes(self, numbers: list[int], python: Array, native: Array | None = None) -> list[int]:
        """The hashes under which stacks are stored, from the hashes of their parts; 0: no stack, or too many.

        numbers: of their processes.
        """
        native_parts = [0] * len(numbers) if native is None else native.tolist()
        parts = list(zip(numbers, python.tolist(), native_parts, strict=True))
        found = {part: stack_hash(*part) for part in set(parts)}
        new = {part for part, number in found.items() if number and part not in self._seen[part[0]]}
        for part in list(new):
            if len(self._seen[part[0]]) < _MAX_SEEN:
                self._seen[part[0]].add(part)
                continue
            found[part] = 0
            new.remove(part)
            self.count_unresolved()
        if new:
            now = time.monotonic()
            self.worker.do(lambda: self._pending.update({_PendingStack(*part): now for part in new}))
        return [found[part] for part in parts]

    def futexes(self, numbers: list[int], addresses: Array, is_asleep: Array) -> Array:
        """The futex addresses of sleeps; bit INTERPRETER_LOCK marks the lock of the thread's interpreter.

        Of other system calls their kind (`events.SENDS` and so on), else 0; PAGE_FAULT for a sleep in none. numbers: of
        their processes. is_asleep: a mask of the intervals that are sleeps.
        """
        is_other = addresses < _LOWEST_FUTEX
        kinds = _CALL_KINDS[np.where(is_other, addresses, 0)]
        marked: Array = np.where(is_other, kinds, addresses)
        marked[(addresses == 0) & is_asleep] = PAGE_FAULT
        processes = np.array(numbers)
        for number in set(numbers):
            process = self._processes.get(number)
            lock = process.interpreter.lock if process and process.interpreter else range(0)
            marked[(processes == number) & (addresses >= lock.start) & (addresses < lock.stop)] |= INTERPRETER_LOCK
        return marked

    def process_of(self, number: int) -> ProcessStacks | None:
        """The stacks of a process; None before any is known."""
        return self._processes.get(number)

    def _each(self, batch: Array, number_of: Callable[[int], int], add: Callable[[ProcessStacks, Any], None]) -> None:
        for record in batch:
            self.worker.do(partial(self._add, number_of(int(record["process_slot"])), record, add))

    def _add(self, number: int, record: Any, add: Callable[[ProcessStacks, Any], None]) -> None:
        add(self._process(number, int(record["pid"])), record)

    def _process(self, number: int, pid: int) -> ProcessStacks:
        if number not in self._processes:
            space = self._files.add(number, pid)
            self._processes[number] = ProcessStacks(pid, space, self._files.symbols, self._deciding, self.worker.count)
        return self._processes[number]

    def _inherit(self, parent: TracedProcess | None, child: TracedProcess) -> None:
        known = self._processes.get(parent.number) if parent else None
        if parent is None or known is None or known.interpreter is None:
            self._begin(child)
            return
        process = self._process(child.number, child.pid)
        process.interpreter, process.layout = known.interpreter, known.layout
        self._freed.begin(child, known.interpreter)
        self._files[child.number].inherit(self._files[parent.number])

    def _begin(self, traced_process: TracedProcess) -> None:
        process = self._process(traced_process.number, traced_process.pid)
        self._files[traced_process.number].forget()
        found = self.interpreters[traced_process.pid] = self._files.reader.memory.interpreter(traced_process.pid)
        self._starting.pop(traced_process.number, None)
        row = np.zeros(1, self._layout_type)
        process.interpreter = None
        if isinstance(found, UnreadableInterpreter):
            if found.is_starting:
                self._starting[traced_process.number] = traced_process
            elif found not in self._unreadable:
                self._unreadable.add(found)
                self._without_lines(found)
        elif found:
            row = layout_row(found, self._layout_type)
            process.interpreter = found
            process.layout = {name: int(row[name][0]) for name in row.dtype.names or () if name != "pad"}
        self._freed.end(traced_process.number)
        if traced_process.exit_ns is None:
            self._kernel.maps["python_layouts"].update(traced_process.slot.to_bytes(4, "little"), row.tobytes())
            if process.interpreter:
                self._freed.begin(traced_process, process.interpreter)

    def _end(self, traced_process: TracedProcess, now: float) -> None:
        self._ended[traced_process.number] = now
        self._freed.end(traced_process.number)

    def _forget(self, number: int) -> None:
        process = self._processes.pop(number, None)
        if process:
            self.interpreters.pop(process.pid, None)
        self._files.forget(number)
        self._starting.pop(number, None)
        self._ended.pop(number, None)
        self._seen.pop(number, None)  # not at its end: calls come from the rings behind the record that tells of it

    def _settle(self, until: float) -> None:
        """Stores stacks whose parts are known, and those that waited too long with what is known.

        As many as there is time for while copies wait; the rest next time.
        """
        ends = math.inf if until == math.inf else time.monotonic() + _SETTLING_S
        for traced_process in list(self._starting.values()):
            self._begin(traced_process)
        if until == math.inf:
            self._freed.close()
            self.worker.beat()
        else:
            self._freed.settle()
        for pending, since in list(self._pending.items()):
            self.worker.beat()
            if time.monotonic() > ends and self.worker.has_jobs:
                break
            del self._pending[pending]  # first, so that one that cannot be resolved does not keep the others
            rows = self._row(pending, is_late=until - since >= _PATIENCE_S)
            if rows:
                self._store(rows)
            else:
                self._pending[pending] = since
        still_pending = {pending.process for pending in self._pending}
        for number, since in list(self._ended.items()):
            if until - since > 2 * _PATIENCE_S and number not in still_pending:
                self._forget(number)
        self._files.close_unused(until)

    def _row(self, pending: _PendingStack, *, is_late: bool) -> Sequence[Row]:
        process = self._processes.get(pending.process)
        python = process.python(pending.python) if process and pending.python else None
        native = process.native(pending.native & ~MAYBE_OTHER) if process and pending.native else None
        is_other = bool(pending.native & MAYBE_OTHER)
        is_whole = (python is not None or not pending.python) and (native is not None or not pending.native)
        if not is_whole and not is_late:
            return []
        ending = process.python_ending(pending.python) if process else ""
        notes = [ending, _MAYBE_OTHER if is_other else ""]
        is_unread = bool(process and process.interpreter) and not self._kernel.walker.is_kernel
        if is_unread:
            notes.append("Python frames were not read as it returned: they are read from outside")
        if not is_whole:
            self.worker.count("stack_parts_missing")
            notes = ["a part of the stack is missing"]
        interpreter = process.interpreter.file if process and process.interpreter else ""
        merged = merge(
            *(native, python, interpreter),
            note="; ".join(filter(None, notes)),
            is_python_whole=is_whole and not ending and not is_unread,
        )
        number = stack_hash(pending.process, pending.python, pending.native)
        self._keep(number, merged)
        return stack_row(number, merged, pending.process)

    def _keep(self, number: int, stack: MergedStack) -> None:
        if self._keeps:
            if len(self._kept) >= _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[number] = stack


def stack_hash(process: int, python: int, native: int) -> int:
    """The hash under which a stack is stored; 0 if there is none."""
    if not python and not native:
        return 0
    native ^= native >> 63  # MAYBE_OTHER would be the bit that is cut off
    value = (python ^ native * _PRIME ^ process * _PRIME * _PRIME) & _HASH_MASK
    return value or 1
