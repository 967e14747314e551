"""Stacks of recorded calls: taken by the kernel side, resolved here by a thread of its own, stored once each.

The kernel side sends a stack, and a code object, the first time it sees it, and its hash with every call. The parts
come through rings of their own, so a call may arrive before its stack: it waits here for a moment. Nothing of this runs
on the thread that drains the rings.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np

from ingero.attach.kernel_side import KernelSide
from ingero.capture.address_space import Images, ProcessAddressSpace
from ingero.capture.hung_calls import HungCalls
from ingero.capture.process_stacks import ProcessStacks, Symbols
from ingero.capture.python_layouts import layout_row
from ingero.capture.stack_frames import MergedStack, merge
from ingero.capture.targets import Target
from ingero.discover.interpreters import UnreadableInterpreter, find_interpreter
from ingero.store import tables
from ingero.store.tables import Row

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

_MAX_WAITING = 4096  # batches; a native stack's is 20 KB
_MAX_SEEN = 1 << 16  # stacks of a process, 0.3 KB each: samples find new ones for as long as it runs
_MAX_KEPT = 4096  # stacks for `known`, about 2 KB each
_PATIENCE_S = 3.0  # the rings are drained four times a second
_RETRY_S = 0.2
_HASH_MASK = (1 << 63) - 1  # hashes are stored as signed integers, 0 is none
_PRIME = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: spreads the process number over all bits


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A stack to be stored: process number, its two parts."""

    process: int
    python: int
    native: int


class Stacks:
    """Resolves the stacks of a recording. Use as a context manager: leaving it stores what is still waiting.

    store: takes rows of `raw_stacks`, from this class's own thread. keeps: whether `known` can be asked.
    """

    def __init__(self, kernel: KernelSide, store: Callable[[list[Row]], object], *, keeps: bool = False) -> None:
        self._kernel, self._store = kernel, store
        self._layout_type = kernel.layouts.dtype("python_layout")
        self._images, self._symbols = Images(), Symbols()
        self._processes: dict[int, ProcessStacks] = {}
        self._spaces: dict[int, ProcessAddressSpace] = {}
        self._starting: dict[int, Target] = {}
        self._ended: dict[int, float] = {}  # by process number: when
        self._wanted: dict[_Wanted, float] = {}
        self._seen: dict[int, set[tuple[int, int, int]]] = defaultdict(set)  # by process number
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue(_MAX_WAITING)
        self._lost: Counter[str] = Counter()
        self._keeps = keeps
        self._kept: dict[int, MergedStack] = {}  # by hash
        self.unreadable: dict[int, UnreadableInterpreter] = {}  # by pid: whose Python frames cannot be had, and why
        self.hung = HungCalls(self._do, self._processes.get, store)
        self._thread = threading.Thread(target=self._run, name="ingero-stacks", daemon=True)

    def __enter__(self) -> Stacks:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.put(None)
        self._thread.join()

    def known(self, stack_hash: int) -> MergedStack | None:
        """The stack with this hash, if it has been resolved; of very many the oldest are forgotten."""
        return self._kept.get(stack_hash)

    def losses(self) -> dict[str, int]:
        """What could not be resolved, by counter, since the last time."""
        lost, self._lost = self._lost, Counter()
        return dict(lost)

    def count_unresolved(self) -> None:
        """Something else could not be resolved."""
        self._lost["stacks_not_resolved"] += 1

    def begin(self, target: Target) -> None:
        """A process is traced from now on, or runs another program from now on."""
        self._do(lambda: self._begin(target))

    def forked(self, parent: Target | None, child: Target) -> None:
        """A traced process has forked: the child has its parent's interpreter and mappings, however soon it ends."""
        self._do(lambda: self._inherit(parent, child))

    def end(self, target: Target) -> None:
        """A process has ended; what is still on its way is waited for."""
        self._seen.pop(target.number, None)
        self._do(lambda: self._ended.update({target.number: time.monotonic()}))

    def add_code(self, batch: Array, number_of: Callable[[int], int]) -> None:
        """Records of ring `python_code`. number_of: the process number of a slot."""
        self._each(batch, number_of, ProcessStacks.add_code)

    def add_python(self, batch: Array, number_of: Callable[[int], int]) -> None:
        """Records of ring `python_stacks`."""
        self._each(batch, number_of, ProcessStacks.add_python)

    def add_native(self, batch: Array, number_of: Callable[[int], int]) -> None:
        """Records of ring `native_stacks`."""
        self._each(batch, number_of, ProcessStacks.add_native)

    def hashes(self, batch: Array, numbers: list[int]) -> list[int]:
        """What the stacks of recorded calls or samples are stored under; 0: it has none, or there are too many."""
        parts = list(zip(numbers, batch["python_stack"].tolist(), batch["native_stack"].tolist(), strict=True))
        found = {part: stack_hash(*part) for part in set(parts)}
        new = {part for part, number in found.items() if number and part not in self._seen[part[0]]}
        for part in list(new):
            if len(self._seen[part[0]]) < _MAX_SEEN:
                self._seen[part[0]].add(part)
                continue
            found[part] = 0
            new.remove(part)
            self._lost["stacks_not_resolved"] += 1
        if new:
            self._do(lambda: self._want(new))
        return [found[part] for part in parts]

    def process_of(self, number: int) -> ProcessStacks | None:
        """What is known of the stacks of a process; None before anything is."""
        return self._processes.get(number)

    def _each(self, batch: Array, number_of: Callable[[int], int], add: Callable[[ProcessStacks, Any], None]) -> None:
        for record in batch:
            self._do(partial(self._add, number_of(int(record["process_slot"])), record, add))

    def _add(self, number: int, record: Any, add: Callable[[ProcessStacks, Any], None]) -> None:
        add(self._process(number, int(record["pid"])), record)

    def _do(self, work: Callable[[], None]) -> None:
        if not self._thread.is_alive():  # stacks are off
            return
        try:
            self._work.put_nowait(work)
        except queue.Full:
            self._lost["stacks_not_resolved"] += 1

    def _run(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=_RETRY_S)
            except queue.Empty:
                self._settle(_PATIENCE_S)
                continue
            if work is None:
                self._settle(0)
                return
            try:
                work()
            except Exception:
                # what a damaged file or a dying process leads to must not end the thread; it is counted and shown
                logger.exception("a stack could not be resolved")
                self._lost["stacks_not_resolved"] += 1

    def _process(self, number: int, pid: int) -> ProcessStacks:
        if number not in self._processes:
            self._spaces[number] = ProcessAddressSpace(pid, self._images)
            self._processes[number] = ProcessStacks(pid, self._spaces[number], self._symbols, self._count)
        return self._processes[number]

    def _inherit(self, parent: Target | None, child: Target) -> None:
        known = self._processes.get(parent.number) if parent else None
        if parent is None or known is None or known.interpreter is None:
            self._begin(child)
            return
        process = self._process(child.number, child.pid)
        process.interpreter, process.layout = known.interpreter, known.layout
        self._spaces[child.number].inherit(self._spaces[parent.number])

    def _count(self, counter: str) -> None:
        self._lost[counter] += 1

    def _begin(self, target: Target) -> None:
        process = self._process(target.number, target.pid)
        self._spaces[target.number].forget()
        found = find_interpreter(target.pid)
        self._starting.pop(target.number, None)
        self.unreadable.pop(target.pid, None)
        row = np.zeros(1, self._layout_type)
        process.interpreter = None
        if isinstance(found, UnreadableInterpreter):
            if found.is_starting:
                self._starting[target.number] = target
            self.unreadable[target.pid] = found
        elif found:
            row = layout_row(found, self._layout_type)
            process.interpreter = found
            process.layout = {name: int(row[name][0]) for name in row.dtype.names or () if name != "pad"}
        if target.exit_ns is None:
            self._kernel.maps["python_layouts"].update(target.slot.to_bytes(4, "little"), row.tobytes())

    def _forget(self, number: int) -> None:
        self._processes.pop(number, None)
        self._spaces.pop(number, None)
        self._starting.pop(number, None)
        self._ended.pop(number, None)

    def _want(self, parts: set[tuple[int, int, int]]) -> None:
        now = time.monotonic()
        self._wanted.update({_Wanted(*part): now for part in parts})

    def _settle(self, patience_s: float) -> None:
        """Stores the stacks whose parts are known; those that waited too long with what is known of them."""
        for target in list(self._starting.values()):
            self._begin(target)
        rows: list[Row] = []
        now = time.monotonic()
        for wanted, since in list(self._wanted.items()):
            row = self._row(wanted, is_late=now - since >= patience_s)
            if row:
                rows += row
                del self._wanted[wanted]
        if rows:
            self._store(rows)
        for number, since in list(self._ended.items()):
            if now - since > 2 * _PATIENCE_S:
                self._forget(number)

    def _row(self, wanted: _Wanted, *, is_late: bool) -> list[Row]:
        process = self._processes.get(wanted.process)
        python = process.python(wanted.python) if process and wanted.python else None
        native = process.native(wanted.native) if process and wanted.native else None
        is_whole = (python is not None or not wanted.python) and (native is not None or not wanted.native)
        if not is_whole and not is_late:
            return []
        note = process.python_ending(wanted.python) if process else ""
        if not is_whole:
            self._count("stack_parts_missing")
            note = "a part of the stack was lost"
        interpreter = process.interpreter.file if process and process.interpreter else ""
        merged = merge(native, python, interpreter, note=note)
        number = stack_hash(wanted.process, wanted.python, wanted.native)
        self._keep(number, merged)
        return tables.STACKS.rows(1, hash=number, ips=merged.ips, frames=merged.frames, note=merged.note)

    def _keep(self, number: int, stack: MergedStack) -> None:
        if self._keeps:
            if len(self._kept) >= _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[number] = stack


def stack_hash(process: int, python: int, native: int) -> int:
    """What a stack is stored under; 0 if there is none."""
    if not python and not native:
        return 0
    value = (python ^ native * _PRIME ^ process * _PRIME * _PRIME) & _HASH_MASK
    return value or 1
