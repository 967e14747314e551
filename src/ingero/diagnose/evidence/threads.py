"""What threads did second by second, what ran instead of them, and who ended their sleeps."""

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

_STOPPED = 0.5  # of the time of a process's threads
_NO_SECONDS: Array = np.zeros(0, arrays.THREAD_STATE_SECOND_DTYPE)


class ThreadEvidence(Recorded):
    """Questions about threads."""

    def __init__(self, reader: Reader, window: Window) -> None:
        super().__init__(reader, window)
        self._culprits: dict[tuple[tuple[Window, ...], int], list[CulpritTotals]] = {}
        self._state_totals: dict[tuple[int, int], list[ThreadStateTotals]] = {}

    def thread_state_totals(self, window: Window) -> list[ThreadStateTotals]:
        """What the threads of each process did in a part of the window."""
        key = (window.begin_ns, window.end_ns)
        if key not in self._state_totals:
            is_there = self.reader.is_recorded("raw_thread_state_seconds")
            self._state_totals[key] = self.reader.thread_state_totals(window) if is_there else []
        return self._state_totals[key]

    def thread_state_seconds(self, windows: Iterable[Window], process: int) -> Array:
        """What a process's threads did in each second that touches these time ranges: `THREAD_STATE_SECOND_DTYPE`."""
        if not self.reader.is_recorded("raw_thread_state_seconds"):
            return _NO_SECONDS
        spans = Spans(windows)
        near = [self.reader.thread_state_seconds(one, process=process) for one in spans.near(LONGEST_PERIOD_NS)]
        rows: Array = np.concatenate([_NO_SECONDS, *near])
        return rows[spans.touch(rows["start_ns"], rows["start_ns"] + rows["period_ns"])]

    def stopped_seconds(self, process: int) -> list[Window]:
        """Stretches in which the threads of a process were stopped most of the time."""
        if not self.reader.is_recorded("raw_thread_state_seconds"):
            return []
        rows = self.reader.thread_state_seconds(self.window, process=process)
        stopped = rows["state_ns"][:, STATES.index("stopped")] > _STOPPED * rows["state_ns"].sum(axis=1)
        found: list[Window] = []
        for row in rows[stopped]:
            begin, end = int(row["start_ns"]), int(row["start_ns"] + row["period_ns"])
            if found and begin - found[-1].end_ns < SECOND_NS:
                found[-1] = Window(begin_ns=found[-1].begin_ns, end_ns=end)
            else:
                found.append(Window(begin_ns=begin, end_ns=end))
        return found

    def throttling(self, window: Window) -> list[Throttling]:
        """How often each control group was throttled in a part of the window."""
        return self.reader.throttling(window) if self.reader.is_recorded("raw_cgroup_throttling") else []

    def culprits(self, windows: Iterable[Window], process: int) -> list[CulpritTotals]:
        """Who ran while the process waited, in parts of the window, most time first."""
        key = (tuple(windows), process)
        if key not in self._culprits:
            is_there = self.reader.is_recorded("raw_culprits")
            self._culprits[key] = self.reader.culprit_shares(Spans(key[0]), process=process) if is_there else []
        return self._culprits[key]

    def wakers(self, process: int) -> list[WakerTotals]:
        """Who ended the sleeps of a process, longest sleep first."""
        is_there = self.reader.is_recorded("raw_wakers")
        return self.reader.wakers(self.window, process=process) if is_there else []

    @cached_property
    def waker_names(self) -> dict[int, str]:
        """The names of processes that ended sleeps of traced threads, by pid; where that is not known by thread."""
        rows = self.reader.wakers(self.window) if self.reader.is_recorded("raw_wakers") else []
        return {one.waker_pid or one.waker_tid: one.waker_name for one in rows if one.waker_name}
