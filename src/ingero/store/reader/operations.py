"""Exact sums of traced calls: per operation, and launches per GPU kernel."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ingero.events import HELD_UP
from ingero.store import histograms
from ingero.store.arrays.spans import Spans, joined
from ingero.store.conditions import LONGEST_PERIOD_NS, of_process, period_ns, share, sum_of, sums_of_clocks, touches
from ingero.store.reader import answers
from ingero.store.reader.questions import Questions, records
from ingero.store.records import CopyShare, KernelLaunches, OpShare, OpTotals, Window

Array = np.ndarray[Any, np.dtype[Any]]

_HELD_UP_NS = " + ".join(f"coalesce(t.{state}_ns, 0)" for state in HELD_UP)
_CALLED = "t.source, t.op, coalesce(o.name, t.source || '/' || t.op)"
_CALLS = (
    f"FROM raw_op_stats t LEFT JOIN ops o ON o.source_id = t.source AND o.op_id = t.op "
    f"WHERE {touches('t')} AND {of_process('t')}"
)


class OperationQuestions(Questions):
    """Queries for sums of calls."""

    def op_totals(self, window: Window, *, process: int | None = None) -> list[OpTotals]:
        """Totals by process and operation, highest total first; of the stored calls only, unless `has_exact_totals`."""
        rows = self._rows(
            f"SELECT t.process, coalesce(p.pid, 0), t.source, t.op, coalesce(o.name, t.source || '/' || t.op), "
            f"sum(t.count), sum(t.errors), sum(t.nested), sum(t.recorded), sum(t.sum_ns), max(t.max_ns), "
            f"{sum_of('t.bytes')}, {sums_of_clocks('t')} FROM raw_op_stats t "
            f"LEFT JOIN raw_processes p ON p.process = t.process "
            f"LEFT JOIN ops o ON o.source_id = t.source AND o.op_id = t.op "
            f"WHERE {touches('t')} AND {of_process('t')} GROUP BY t.process, t.source, t.op "
            f"ORDER BY sum(t.sum_ns) DESC",
            window,
            process=process,
        )
        counts = self.op_histograms(window, process=process) if self.is_recorded("raw_call_sites") else {}
        return [answers.op_totals(row, counts.get((row[0], row[2], row[3]))) for row in rows]

    def op_histograms(
        self, window: Window, *, process: int | None = None
    ) -> dict[tuple[int, int, int], histograms.Counts]:
        """Histograms by (process, source, op), summed over call sites, of the minutes that touch the window."""
        packed: dict[tuple[int, int, int], list[bytes]] = defaultdict(list)
        for number, source, op, blob in self._rows(
            f"SELECT process, source, op, histogram FROM raw_call_sites WHERE {touches()} AND {of_process()}",
            window,
            table="raw_call_sites",
            process=process,
        ):
            packed[number, source, op].append(blob)
        return {key: histograms.merge(blobs) for key, blobs in packed.items()}

    def op_spans(self, windows: Sequence[Window], *, process: int) -> list[Window]:
        """The windows, each extended to the whole seconds that it overlaps."""
        sql = (
            f"SELECT DISTINCT start_ns, start_ns + {period_ns()} FROM raw_op_stats "
            f"WHERE {touches()} AND {of_process()} ORDER BY start_ns"
        )
        near = joined(windows, apart_ns=LONGEST_PERIOD_NS)
        seconds = [row for one in near for row in self._rows(sql, one, process=process)]
        begins, ends = [begin for begin, _ in seconds], [end for _, end in seconds]
        found = []
        for window in windows:
            first, last = bisect_right(ends, window.begin_ns), bisect_left(begins, window.end_ns)
            begin_ns, end_ns = (begins[first], ends[last - 1]) if first < last else (window.begin_ns, window.end_ns)
            found.append(Window(begin_ns=min(begin_ns, window.begin_ns), end_ns=max(end_ns, window.end_ns)))
        return found

    def op_shares(self, windows: Iterable[Window], *, process: int) -> list[OpShare]:
        """Calls of one process by operation in time ranges; seconds at the edges count in proportion."""
        spans = Spans(windows)
        sums: dict[tuple[Any, ...], Array] = {}
        sql = (
            f"SELECT t.start_ns, t.start_ns + {period_ns('t')}, {_CALLED}, "
            f"sum(t.count), sum(t.untimed), sum(t.sum_ns), sum({_HELD_UP_NS}), {sum_of('t.bytes')}, "
            f"coalesce(sum(t.errors), 0) "
            f"{_CALLS} GROUP BY t.start_ns, t.period_s, t.source, t.op"
        )
        for window in spans.near(LONGEST_PERIOD_NS):
            rows = self._rows(sql, window, process=process)
            times = np.array([row[:2] for row in rows], np.int64).reshape(-1, 2)
            for row, within in zip(rows, spans.shares(times[:, 0], times[:, 1]).tolist(), strict=True):
                if within:
                    sums[row[2:5]] = sums.get(row[2:5], 0.0) + within * np.array(row[5:], np.float64)
        return list(records(OpShare, ((*key, *one.tolist()) for key, one in sums.items())))

    def op_shares_by_process(self, window: Window) -> dict[int, list[OpShare]]:
        """Calls by process and operation in one time range; seconds at the edges count in proportion."""
        found: dict[int, list[OpShare]] = defaultdict(list)
        for number, *of_op in self._rows(
            f"SELECT t.process, {_CALLED}, "
            f"sum(t.count * {share('t')}), sum(t.untimed * {share('t')}), sum(t.sum_ns * {share('t')}), "
            f"sum(({_HELD_UP_NS}) * {share('t')}), "
            f"sum(t.bytes * {share('t')}), sum(t.errors * {share('t')}) {_CALLS} GROUP BY t.process, t.source, t.op",
            window,
            process=None,
        ):
            found[number] += records(OpShare, [tuple(of_op)])
        return found

    def copy_shares(self, windows: Iterable[Window], *, process: int) -> list[CopyShare]:
        """Bytes that copies of one process moved by operation in time ranges; none where that was not recorded."""
        if not self.is_recorded("raw_copies"):
            return []
        spans = Spans(windows)
        sums: dict[tuple[int, int], Array] = {}
        sql = (
            f"SELECT t.start_ns, t.start_ns + {period_ns('t')}, t.source, t.op, t.host_to_gpu_bytes, "
            f"t.gpu_to_host_bytes, t.blocked_ns FROM raw_copies t WHERE {touches('t')} AND {of_process('t')}"
        )
        for window in spans.near(LONGEST_PERIOD_NS):
            for begin_ns, end_ns, source, op, *moved in self._rows(sql, window, table="raw_copies", process=process):
                (within,) = spans.shares(np.array([begin_ns]), np.array([end_ns])).tolist()
                sums[source, op] = sums.get((source, op), 0.0) + within * np.array(moved, np.float64)
        return list(records(CopyShare, ((*key, *one.tolist()) for key, one in sums.items())))

    def kernel_launches(self, window: Window, *, process: int | None = None) -> list[KernelLaunches]:
        """Launches by process, GPU kernel and issuing library, most first."""
        return self._records(
            KernelLaunches,
            f"SELECT k.process, iif(n.name IS NULL, k.function, 0) AS nameless, coalesce(n.name, '') AS name, "
            f"coalesce(n.short_name, ''), coalesce(s.text, '') AS library, coalesce(n.source_of_name, ''), "
            f"sum(k.count) FROM raw_kernel_launches k LEFT JOIN raw_strings s ON s.string = k.library "
            f"LEFT JOIN raw_kernels n ON n.process = k.process AND n.function = k.function "
            f"AND n.generation = k.generation WHERE {touches('k')} AND {of_process('k')} "
            f"GROUP BY k.process, nameless, name, s.text ORDER BY sum(k.count) DESC",
            window,
            table="raw_kernel_launches",
            process=process,
        )
