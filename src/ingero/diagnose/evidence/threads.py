"""Evidence about threads: their states second by second, what ran instead of them, and what ended their sleeps."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from ingero.diagnose.evidence.recorded import Recorded
from ingero.events import STATES
from ingero.store.arrays import arrays
from ingero.store.arrays.spans import Spans
from ingero.store.conditions import LONGEST_PERIOD_NS
from ingero.store.reader import Reader
from ingero.store.records import CulpritTotals, ThreadStateTotals, Throttling, WakerTotals, Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

_MIN_STOPPED = 0.5  # of the time of a process's threads, before a second counts as stopped
_NO_SECONDS: Array = np.zeros(0, arrays.THREAD_STATE_SECOND_DTYPE)


class ThreadEvidence(Recorded):
    """The part of `Evidence` about threads."""

    def __init__(self, reader: Reader, window: Window) -> None:
        super().__init__(reader, window)
        self._culprits: dict[tuple[tuple[Window, ...], int], list[CulpritTotals]] = {}
        self._state_totals: dict[tuple[int, int], list[ThreadStateTotals]] = {}

    def thread_state_totals(self, window: Window) -> list[ThreadStateTotals]:
        """The thread-state time of each process's threads in a part of the window."""
        key = (window.begin_ns, window.end_ns)
        if key not in self._state_totals:
            is_there = self.reader.is_recorded("raw_thread_state_seconds")
            self._state_totals[key] = self.reader.thread_state_totals(window) if is_there else []
        return self._state_totals[key]

    def thread_state_seconds(self, windows: Iterable[Window], process: int) -> Array:
        """Thread-state time of a process in each second that touches these ranges (`THREAD_STATE_SECOND_DTYPE`)."""
        if not self.reader.is_recorded("raw_thread_state_seconds"):
            return _NO_SECONDS
        spans = Spans(windows)
        near = [self.reader.thread_state_seconds(window, process=process) for window in spans.near(LONGEST_PERIOD_NS)]
        rows: Array = np.concatenate([_NO_SECONDS, *near])
        return rows[spans.touch(rows["start_ns"], rows["start_ns"] + rows["period_ns"])]

    def stopped_seconds(self, process: int) -> list[Window]:
        """Time ranges in which the threads of a process were stopped most of the time."""
        if not self.reader.is_recorded("raw_thread_state_seconds"):
            return []
        rows = self.reader.thread_state_seconds(self.window, process=process)
        stopped = rows["state_ns"][:, STATES.index("stopped")] > _MIN_STOPPED * rows["state_ns"].sum(axis=1)
        found: list[Window] = []
        for row in rows[stopped]:
            begin, end = int(row["start_ns"]), int(row["start_ns"] + row["period_ns"])
            if found and begin - found[-1].end_ns < SECOND_NS:
                found[-1] = Window(begin_ns=found[-1].begin_ns, end_ns=end)
            else:
                found.append(Window(begin_ns=begin, end_ns=end))
        return found

    def throttling(self, window: Window) -> list[Throttling]:
        """How often each cgroup was throttled in a part of the window."""
        return self.reader.throttling(window) if self.reader.is_recorded("raw_cgroup_throttling") else []

    def culprits(self, windows: Iterable[Window], process: int) -> list[CulpritTotals]:
        """Processes that ran while this process waited for a CPU, in parts of the window, most time first."""
        key = (tuple(windows), process)
        if key not in self._culprits:
            is_there = self.reader.is_recorded("raw_culprits")
            self._culprits[key] = self.reader.culprit_shares(Spans(key[0]), process=process) if is_there else []
        return self._culprits[key]

    def wakers(self, process: int) -> list[WakerTotals]:
        """The wakers that ended sleeps of a process, longest sleep first."""
        is_there = self.reader.is_recorded("raw_wakers")
        return self.reader.wakers(self.window, process=process) if is_there else []

    @cached_property
    def waker_names(self) -> dict[int, str]:
        """Names of the wakers of traced threads, by pid, or by thread id where the pid is not known."""
        rows = self.reader.wakers(self.window) if self.reader.is_recorded("raw_wakers") else []
        return {one.waker_pid or one.waker_tid: one.waker_name for one in rows if one.waker_name}
