"""Scheduling of threads, as exact sums and interval by interval: thread-state times, culprits, wakers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ingero.events import THREAD_STATES
from ingero.store import machine, views
from ingero.store.arrays import arrays
from ingero.store.arrays.spans import Spans
from ingero.store.conditions import LONGEST_PERIOD_NS, of_process, period_ns, sums_of_clocks, touches, within
from ingero.store.reader import answers
from ingero.store.reader.questions import Questions, records
from ingero.store.records import CulpritTotals, OffCpu, ThreadStateTotals, Throttling, WakerTotals, Window
from ingero.units import SECOND_NS

_LONGEST_SLEEP_NS = 30 * SECOND_NS  # longest interval off the CPU that began before a window and is still found
_INVOLUNTARY = ", ".join(str(THREAD_STATES.index(name)) for name in ("runq", "throttled", "yielded"))
_WAITED_NS = (  # all of an interval that was no sleep; of a sleep what followed the wake-up
    f"(CASE WHEN state IN ({_INVOLUNTARY}) THEN duration_ns WHEN state IS NULL OR woken_ns = 0 THEN 0 "
    "ELSE start_ns + duration_ns - woken_ns END)"
)

_CULPRIT = "c.process, t.name, c.culprit_pid, coalesce(s.text, ''), c.culprit_cgroup_id"
_CULPRITS = (
    f"FROM raw_culprits c LEFT JOIN thread_states t ON t.id = c.kind "
    f"LEFT JOIN raw_strings s ON s.string = c.culprit_name WHERE {touches('c')} AND {of_process('c')}"
)


class SchedulingQuestions(Questions):
    """Queries for thread-state times, culprits and wakers."""

    def thread_state_totals(self, window: Window) -> list[ThreadStateTotals]:
        """Thread-state times of each process, summed over threads and time; `threads` is the most at once."""
        rows = self._rows(
            f"SELECT c.process, coalesce(p.pid, 0), sum(c.switches), sum(c.involuntary_switches), max(c.threads), "
            f"sum(c.major_faults), {sums_of_clocks('c')} FROM raw_thread_state_seconds c "
            f"LEFT JOIN raw_processes p ON p.process = c.process "
            f"WHERE {touches('c')} GROUP BY c.process ORDER BY c.process",
            window,
            table="raw_thread_state_seconds",
        )
        return [
            ThreadStateTotals(
                process=r[0],
                pid=r[1],
                switches=r[2],
                involuntary_switches=r[3],
                threads=r[4],
                major_faults=r[5],
                clocks=answers.clocks(r[6:]),
            )
            for r in rows
        ]

    def thread_state_seconds(self, window: Window, *, process: int | None = None) -> npt.NDArray[np.void]:
        """Thread-state times per second, in order of time: `arrays.THREAD_STATE_SECOND_DTYPE`."""
        rows = self._each(
            f"SELECT {arrays.THREAD_STATE_SECOND_COLUMNS} FROM raw_thread_state_seconds WHERE {touches()} "
            f"AND {of_process()} ORDER BY start_ns",
            window,
            table="raw_thread_state_seconds",
            process=process,
        )
        return arrays.thread_state_seconds(rows)

    def culprits(self, window: Window, *, process: int | None = None) -> list[CulpritTotals]:
        """The processes that ran while a process waited, most time first; idle CPUs and unknown ones included."""
        return self._records(
            CulpritTotals,
            f"SELECT {_CULPRIT}, sum(c.ns), sum(c.switches) {_CULPRITS} "
            f"GROUP BY c.process, c.kind, c.culprit_pid, c.culprit_name, c.culprit_cgroup_id ORDER BY sum(c.ns) DESC",
            window,
            table="raw_culprits",
            process=process,
        )

    def culprit_shares(self, spans: Spans, *, process: int) -> list[CulpritTotals]:
        """The culprits of one process in time ranges; seconds at the edges count in proportion."""
        ns: Counter[tuple[Any, ...]] = Counter()
        switches: Counter[tuple[Any, ...]] = Counter()
        sql = f"SELECT c.start_ns, c.start_ns + {period_ns('c')}, c.ns, c.switches, {_CULPRIT} {_CULPRITS}"
        for window in spans.near(LONGEST_PERIOD_NS):
            rows = self._rows(sql, window, table="raw_culprits", process=process)
            times = np.array([row[:2] for row in rows], np.int64).reshape(-1, 2)
            for row, share in zip(rows, spans.shares(times[:, 0], times[:, 1]).tolist(), strict=True):
                if share:
                    ns[row[4:]] += row[2] * share
                    switches[row[4:]] += row[3] * share
        return list(records(CulpritTotals, ((*key, int(one), int(switches[key])) for key, one in ns.most_common())))

    def wakers(self, window: Window, *, process: int | None = None) -> list[WakerTotals]:
        """The wakers that ended a process's sleeps, longest sleep first."""
        return self._records(
            WakerTotals,
            f"SELECT w.process, k.name, w.waker_pid, w.waker_tid, coalesce(s.text, ''), sum(w.count), sum(w.sleep_ns) "
            f"FROM raw_wakers w LEFT JOIN waker_kinds k ON k.id = w.waker_kind "
            f"LEFT JOIN raw_strings s ON s.string = w.waker_name WHERE {touches('w')} "
            f"AND {of_process('w')} GROUP BY w.process, w.waker_kind, w.waker_pid, w.waker_tid, w.waker_name "
            f"ORDER BY sum(w.sleep_ns) DESC",
            window,
            table="raw_wakers",
            process=process,
        )

    def throttling(self, window: Window) -> list[Throttling]:
        """How often and how long each cgroup was throttled."""
        return self._records(
            Throttling,
            f"SELECT cgroup_id, sum(nr_throttled), sum(throttled_ns) FROM raw_cgroup_throttling "
            f"WHERE {touches()} GROUP BY cgroup_id HAVING sum(nr_throttled) > 0",
            window,
            table="raw_cgroup_throttling",
        )

    def scheduling(self, window: Window, *, process: int | None = None) -> list[machine.Scheduling]:
        """Priorities, allowed CPUs and CPU weights at the begin of the window, and each change in it, oldest first."""
        return self._records(
            machine.Scheduling, machine.SCHEDULING_SQL, window, table="raw_scheduling", process=process
        )

    def offcpu(self, window: Window, *, process: int | None = None, limit: int) -> list[OffCpu]:
        """The longest intervals off the CPU that began in the window, longest first."""
        return self._most(window, "duration_ns", process=process, limit=limit)

    def longest_wait(self, window: Window, process: int) -> OffCpu | None:
        """The interval of a process, begun in the window, in which a thread could have run for longest."""
        found = self._most(window, _WAITED_NS, process=process, limit=1)
        return next((one for one in found if one.waited_ns), None)

    def _most(self, window: Window, by: str, *, process: int | None, limit: int) -> list[OffCpu]:
        """Intervals off the CPU that began in the window, ordered by an SQL expression, largest first."""
        inner = (
            f"SELECT * FROM raw_offcpu WHERE {within('start_ns')} AND {of_process()} ORDER BY {by} DESC LIMIT :limit"
        )
        view = views.query("offcpu").replace("FROM raw_offcpu i", f"FROM ({inner}) i")
        return self._records(
            OffCpu,
            f"SELECT timestamp, duration_ns, process, pid, tid, coalesce(comm, ''), state, woken_ns, cpu, culprit_pid, "
            f"coalesce(culprit_name, ''), culprit_ns, coalesce(waker_kind, ''), waker_pid, waker_tid, "
            f"coalesce(waker_name, '') FROM ({view}) ORDER BY duration_ns DESC",
            window,
            process=process,
            limit=limit,
        )

    def offcpu_rows(self, window: Window) -> npt.NDArray[np.void]:
        """Intervals off the CPU that ended or began in the window, by begin: `arrays.OFFCPU_DTYPE`."""
        rows = self._each(
            f"SELECT {arrays.OFFCPU_COLUMNS} FROM raw_offcpu WHERE start_ns >= :begin - {_LONGEST_SLEEP_NS} "
            f"AND start_ns < :end AND start_ns + duration_ns >= :begin ORDER BY start_ns",
            window,
        )
        return arrays.offcpu(rows)
