"""Sums per second who woke traced processes, from their off-CPU intervals (100 us and more)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ingero.capture.loop.period import Period
from ingero.capture.processes.traced_processes import TracedProcesses
from ingero.capture.records.rows import Sink
from ingero.events import WAKER_KINDS
from ingero.store.writing import tables

_THREAD_KINDS = (WAKER_KINDS.index("thread"), WAKER_KINDS.index("kworker"))


class WakerRows:
    """Collects intervals (`struct offcpu_record`) and writes their sums.

    name_of_thread: name by tid, "" where unknown.
    """

    def __init__(self, sink: Sink, traced_processes: TracedProcesses, name_of_thread: Callable[[int], str]) -> None:
        self._sink, self._traced_processes, self._name_of_thread = sink, traced_processes, name_of_thread
        self._sums: dict[tuple[int, int, int, int], tuple[int, int]] = {}

    def add(self, batch: np.ndarray[Any, Any]) -> None:
        """Counts the intervals that were sleeps."""
        slept = batch[batch["woken_ns"] != 0]
        lengths = (slept["woken_ns"] - slept["start_ns"]).astype(np.int64)
        columns = (slept["process_slot"], slept["waker_kind"], slept["waker_pid"], slept["waker_tid"], lengths)
        for slot, kind, pid, tid, length_ns in zip(*(column.tolist() for column in columns), strict=True):
            key = (slot, kind, pid, tid) if kind in _THREAD_KINDS else (slot, kind, 0, 0)
            count, total_ns = self._sums.get(key, (0, 0))
            self._sums[key] = (count + 1, total_ns + length_ns)

    def write(self, period: Period) -> None:
        """Writes and clears the sums of a second."""
        known = [
            (traced_process, key, sums)
            for key, sums in self._sums.items()
            if (traced_process := self._traced_processes.at(key[0]))
        ]
        self._sums.clear()
        rows = tables.WAKERS.rows(
            len(known),
            session=self._sink.session,
            **period.columns(),
            process=[traced_process.number for traced_process, _, _ in known],
            waker_kind=[kind for _, (_, kind, _, _), _ in known],
            waker_pid=[pid for _, (_, _, pid, _), _ in known],
            waker_tid=[tid for _, (_, _, _, tid), _ in known],
            waker_name=[self._name(tid) for _, (_, _, _, tid), _ in known],
            count=[count for _, _, (count, _) in known],
            sleep_ns=[total_ns for _, _, (_, total_ns) in known],
        )
        self._sink.append(tables.WAKERS, rows)

    def _name(self, tid: int) -> int:
        name = self._name_of_thread(tid) if tid else ""
        return self._sink.intern(name) if name else 0
