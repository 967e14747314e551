"""Call stacks of recorded calls and of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ingero.store.arrays import arrays
from ingero.store.conditions import of_process, within
from ingero.store.reader.questions import Questions, fields_of, listed
from ingero.store.records import CallSums, LastSample, SampleTotals, Stack, StackTime, Window


class StackQuestions(Questions):
    """Queries for call stacks."""

    def stacks(self, hashes: Sequence[int]) -> list[Stack]:
        """The stacks with these hashes, as far as they are stored."""
        return self._records(Stack, f"SELECT {fields_of(Stack)} FROM raw_stacks WHERE hash IN ({listed(hashes)})")

    def stack_times(self, window: Window, *, process: int, sources: Sequence[int]) -> list[StackTime]:
        """The recorded calls of these sources that began in the window by operation and stack, highest total first."""
        return self._records(
            StackTime,
            f"SELECT e.process, e.source, e.op, coalesce(o.name, e.source || '/' || e.op), e.stack_hash, e.calls, e.ns "
            f"FROM (SELECT process, source, op, stack_hash, count(*) AS calls, sum(duration_ns) AS ns FROM raw_events "
            f"WHERE {within('start_ns')} AND process = :process "
            f"AND source IN ({listed(sources)}) GROUP BY source, op, stack_hash) e "
            f"LEFT JOIN ops o ON o.source_id = e.source AND o.op_id = e.op ORDER BY e.ns DESC",
            window,
            process=process,
        )

    def call_sums(self, window: Window, *, process: int, sources: Sequence[int]) -> list[CallSums]:
        """The recorded calls of these sources with a stack that began in the window, by operation, stack and thread."""
        return self._records(
            CallSums,
            f"SELECT source, op, stack_hash, tid, count(*), sum(duration_ns), max(duration_ns) FROM raw_events "
            f"WHERE {within('start_ns')} AND process = :process AND stack_hash <> 0 "
            f"AND source IN ({listed(sources)}) GROUP BY source, op, stack_hash, tid",
            window,
            process=process,
        )

    def first_calls(self, window: Window, *, process: int, most: int) -> tuple[int, int]:
        """How many of the first `most` recorded calls and events began in the window, and when the last of them did."""
        rows = self._rows(
            f"SELECT count(*), coalesce(max(start_ns), :begin) FROM (SELECT start_ns FROM raw_events "
            f"WHERE {within('start_ns')} AND process = :process ORDER BY start_ns LIMIT :most)",
            window,
            process=process,
            most=most,
        )
        return rows[0]

    def sync_stacks(self, window: Window, *, process: int) -> dict[int, int]:
        """Stack hashes of a process's recorded syncs, by their return (sync_end_ns of the sync interval)."""
        rows = self._rows(
            f"SELECT start_ns + duration_ns, stack_hash FROM raw_events WHERE {within('start_ns')} "
            "AND process = :process AND stack_hash <> 0 AND start_ns + duration_ns IN "
            "(SELECT sync_end_ns FROM raw_sync_intervals WHERE sync_end_ns >= :begin AND process = :process)",
            window,
            table="raw_sync_intervals",
            process=process,
        )
        return dict(rows)

    def samples(self, window: Window, *, process: int | None = None) -> list[SampleTotals]:
        """Samples of threads outside traced calls, summed by thread, state and stack, most time first."""
        return self._records(
            SampleTotals,
            f"SELECT s.process, s.pid, s.tid, coalesce(t.text, ''), n.name, s.is_collecting, s.stack_hash, count(*), "
            f"sum(s.weight_ns) FROM raw_stack_samples s LEFT JOIN raw_strings t ON t.string = s.comm "
            f"LEFT JOIN thread_states n ON n.id = s.state WHERE {within('s.time_ns')} AND s.weight_ns > 0 "
            f"AND {of_process('s')} GROUP BY s.process, s.tid, s.comm, s.state, s.is_collecting, s.stack_hash "
            f"ORDER BY sum(s.weight_ns) DESC",
            window,
            table="raw_stack_samples",
            process=process,
        )

    def last_samples(self, window: Window, *, process: int) -> list[LastSample]:
        """The last sample in the window of each thread of a process, outside traced calls."""
        return self._records(
            LastSample,
            f"SELECT max(s.time_ns), s.tid, coalesce(t.text, ''), n.name, s.stack_hash FROM raw_stack_samples s "
            f"LEFT JOIN raw_strings t ON t.string = s.comm LEFT JOIN thread_states n ON n.id = s.state "
            f"WHERE {within('s.time_ns')} AND s.process = :process GROUP BY s.tid ORDER BY s.tid",
            window,
            table="raw_stack_samples",
            process=process,
        )

    def sample_rows(self, window: Window, *, process: int | None = None) -> npt.NDArray[np.void]:
        """Samples of threads outside traced calls, one by one in order of time: `arrays.SAMPLE_DTYPE`."""
        rows = self._each(
            f"SELECT {arrays.SAMPLE_COLUMNS} FROM raw_stack_samples WHERE {within('time_ns')} AND weight_ns > 0 "
            f"AND {of_process()} ORDER BY time_ns",
            window,
            table="raw_stack_samples",
            process=process,
        )
        return arrays.samples(rows)
