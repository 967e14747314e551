"""Finds the steps of traced processes: has the kernel side write calls, finds what repeats, writes closed steps."""

from __future__ import annotations

import enum
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ingero.attach.groups import GROUP_OF_OP, Group
from ingero.attach.kernel_side import KernelSide
from ingero.attach.probes import ProbeMode
from ingero.capture.processes.traced_processes import TracedProcesses
from ingero.capture.steps.step_learning import StepLearner, StepRequest
from ingero.capture.steps.step_rows import StepRows
from ingero.capture.sums.cells import CellGrowth
from ingero.discover import kernel_clock
from ingero.ops import OPS, Kind

Array = np.ndarray[Any, np.dtype[Any]]
logger = logging.getLogger(__name__)

_ENQUEUES = frozenset(op.id for op in OPS if op.kind & Kind.ENQUEUE)
_HELD_STEPS = 4096  # of a process, while they are not believed yet


class ProcessWatch(enum.IntFlag):
    """What the kernel side does at a process's calls (bpf/events.h, enum process_watch)."""

    MARKER = 1
    SEQUENCE = 2
    DRIVER_MARKER = 4
    INNER_MARKER = 8


class StepFinder:
    """Owns the step learners of a recording, by process slot."""

    def __init__(
        self,
        kernel: KernelSide,
        traced_processes: TracedProcesses,
        rows: StepRows,
        now_ns: Callable[[], int] = kernel_clock.monotonic_ns,
    ) -> None:
        self._traced_processes, self._rows, self._now_ns = traced_processes, rows, now_ns
        self._can_time = kernel.mode is not ProbeMode.ENTRY_ONLY  # blocked time is known at returns only
        processes = kernel.maps["processes"]
        self._processes = np.frombuffer(processes.memory(), kernel.layouts.dtype("process"), processes.max_entries)
        self._learners: dict[int, tuple[int, StepLearner]] = {}  # with the pid
        self._given: dict[int, StepRequest] = {}
        self._held: dict[int, list[Array]] = defaultdict(list)
        self._generation = 0

    def calls(self, records: Array) -> None:
        """Takes calls of learning windows (`struct sequence_record`)."""
        for slot in np.unique(records["process_slot"]).tolist():
            learner = self._learner(slot)
            if learner:
                now_ns = self._now_ns()
                learner.add_calls(records[records["process_slot"] == slot], now_ns)
                learner.search_window(now_ns)
                self._grant(slot, learner)

    def steps(self, records: Array) -> None:
        """Takes steps that the kernel has closed (`struct step_record`)."""
        for slot in np.unique(records["process_slot"]).tolist():
            mine = records[records["process_slot"] == slot]
            learner = self._learner(slot)
            if not learner:
                continue
            all_enqueues = mine["launches"] + mine["copies"] + mine["collectives"]
            enqueues = np.where(mine["launches"] > 0, all_enqueues, 0).tolist()  # 0: launches may be given up
            now_ns = self._now_ns()
            for step_type, count in zip(self._rows.types(mine), enqueues, strict=True):
                learner.step(step_type, int(count), now_ns)
            self._grant(slot, learner)
            self._write(slot, learner, mine)

    def _write(self, slot: int, learner: StepLearner, steps: Array) -> None:
        """Writes confirmed steps; earlier ones are held until they are confirmed or rejected."""
        held = self._held[slot]
        held.append(steps)
        if learner.is_believed:
            self._rows.write(np.concatenate(held))
            held.clear()
        elif learner.marker is None or sum(map(len, held)) > _HELD_STEPS:
            held.clear()

    def second(self, cells: Iterable[CellGrowth]) -> None:
        """Notes what each process has enqueued in the last second, and searches windows that are over."""
        if not self._can_time:
            return
        enqueued: dict[int, int] = defaultdict(int)
        for cell in cells:
            if cell.op in _ENQUEUES:
                enqueued[cell.slot] += int(cell.growth["count"])
        now_ns = self._now_ns()
        for slot in enqueued.keys() | self._learners.keys():
            learner = self._learner(slot)
            if learner:
                learner.note_enqueues(enqueued[slot], now_ns)
                learner.search_window(now_ns)
                self._grant(slot, learner)

    def _learner(self, slot: int) -> StepLearner | None:
        """The learner of the process that has a slot now."""
        pid = int(self._processes["pid"][slot])
        if not pid or not self._can_time:
            return None
        owner = self._learners.get(slot)
        if owner is None or owner[0] != pid:
            self.forget(slot)
            owner = self._learners[slot] = (pid, StepLearner(self._now_ns()))
        return owner[1]

    def _grant(self, slot: int, learner: StepLearner) -> None:
        """Has the kernel side do what a learner requests."""
        request = learner.request()
        before = self._given.get(slot, StepRequest(calls=0, marker=None))
        if request == before:
            return
        self._given[slot] = request
        if not request.calls and request.marker is None and learner.why_not:
            logger.debug("process number %d: no step is tracked: %s", slot, learner.why_not)
        row = self._processes[slot : slot + 1]
        if request.marker != before.marker:
            self._mark(row, request)
        if request.calls and not before.calls:
            row["sequence_left"] = request.calls
        row["watch"] = _watch(request)

    def _mark(self, row: Array, request: StepRequest) -> None:
        """Sets another marker; a step begun by the previous one never ends."""
        row["watch"] = int(row["watch"][0]) & ProcessWatch.SEQUENCE
        self._generation += 1
        row["marker_generation"] = self._generation
        row["driver_marker_op"] = 0
        if request.marker:
            logger.debug("process %d: steps begin with %s", int(row["pid"][0]), request.marker)
            for name in ("op", "function", "caller", "tid"):
                row[f"marker_{name}"] = getattr(request.marker, name)

    def begin(self, slot: int) -> None:
        """Starts learning for a program that is new or was executed: the kernel side knows no step of it."""
        self.forget(slot)
        learner = self._learner(slot)
        if learner:
            self._grant(slot, learner)

    def forget(self, slot: int) -> None:
        """Forgets an ended process."""
        self._learners.pop(slot, None)
        self._given.pop(slot, None)
        self._held.pop(slot, None)


def _watch(request: StepRequest) -> ProcessWatch:
    marker = ProcessWatch.MARKER * (request.marker is not None)
    if request.marker and request.marker.is_matched_by_kernel:
        at_driver = GROUP_OF_OP[request.marker.op] is Group.DRIVER_LAUNCHES
        marker |= (
            ProcessWatch.INNER_MARKER if at_driver else ProcessWatch.DRIVER_MARKER
        )  # launches may be traced at either layer
    return ProcessWatch(marker | ProcessWatch.SEQUENCE * bool(request.calls))
