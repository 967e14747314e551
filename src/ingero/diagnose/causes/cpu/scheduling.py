"""Scheduling attributes in force during a case (affinity masks, priorities) and idle time of its CPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.store.machine import Scheduling
from ingero.units import SECOND_NS

CpuSet = frozenset[int]

# attributes are read every second, and a time range may begin up to a tenth of one early
_READ_PERIOD_NS = SECOND_NS * 11 // 10
IDLE_POLICY = "idle"  # runs only where nobody else wants to


class SchedulerFacts:
    """The rows of `raw_scheduling` and `raw_cpu_seconds` that concern one case."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def history(self, pid: int, tid: int) -> Sequence[Scheduling]:
        """A thread's scheduling attributes, oldest first; where it was not read, those of its process's main thread."""
        rows = self.case.evidence.scheduling
        return rows.get((pid, tid)) or rows.get((pid, pid)) or ()

    def in_force(self, pid: int, tid: int) -> Scheduling | None:
        """A thread's scheduling attributes during most of the lost time.

        A change is seen up to a second late: one read within a second after the lost time began counts from its
        beginning.
        """
        rows = self.history(pid, tid)
        if not rows:
            return None
        begin_ns = self.case.window.begin_ns
        changes = [begin_ns if 0 <= row.time_ns - begin_ns < _READ_PERIOD_NS else row.time_ns for row in rows[1:]]
        place = np.searchsorted(changes, self.case.sync_intervals["sync_end_ns"], side="right")
        lost = np.bincount(place, weights=np.maximum(self.case.excess_ns, 0), minlength=len(rows))
        return rows[int(np.argmax(lost))]

    @property
    def path_thread(self) -> int:
        """The tid of the process's own thread that was most on the critical path."""
        tids, counts = np.unique(self.case.sync_intervals["sync_tid"], return_counts=True)
        return int(tids[np.argmax(counts)])

    # CPUs

    @cached_property
    def all_cpus(self) -> CpuSet:
        """The CPUs of the host that are online."""
        return frozenset(np.unique(self.case.evidence.cpu_seconds["cpu"]).tolist())

    def idle_cpus(self, cpus: Iterable[int]) -> float:
        """How many of these CPUs were idle on average, weighted by the time lost."""
        return self._mean_over_lost_time(self._idle_by_second(cpus))

    def idle_share(self, cpus: Iterable[int]) -> float:
        """In which share of the lost time (0-1) one more thread could have run on these CPUs."""
        return self._mean_over_lost_time(
            {time_ns: min(idle, 1.0) for time_ns, idle in self._idle_by_second(cpus).items()}
        )

    def _mean_over_lost_time(self, by_second: Mapping[int, float]) -> float:
        """The mean over seconds, each weighted by the time lost in it."""
        ends, excess = self.case.sync_intervals["sync_end_ns"], np.maximum(self.case.excess_ns, 0)
        lost = [float(excess[(ends > end_ns - SECOND_NS) & (ends <= end_ns)].sum()) for end_ns in by_second]
        if not sum(lost):
            return float(np.mean(list(by_second.values()) or [0.0]))
        return float(np.average(list(by_second.values()), weights=lost))

    def _idle_by_second(self, cpus: Iterable[int]) -> dict[int, float]:
        rows, window = self.case.evidence.cpu_seconds, self.case.window
        chosen = rows[
            np.isin(rows["cpu"], list(cpus))
            & (rows["time_ns"] > window.begin_ns + SECOND_NS // 2)
            & (rows["time_ns"] - rows["elapsed_ns"] < window.end_ns - SECOND_NS // 2)
        ]
        idle: dict[int, float] = defaultdict(float)
        for row in chosen:
            idle[int(row["time_ns"])] += float(row["idle_ns"] + row["iowait_ns"]) / max(float(row["elapsed_ns"]), 1.0)
        return idle
