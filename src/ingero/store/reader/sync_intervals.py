"""Sync intervals of streams: one by one, in short form, and their exact sums."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ingero.store.arrays import arrays
from ingero.store.arrays.gpu_streams import (
    GpuStream,
    GpuStreamSums,
    has_digests,
    read_gpu_stream_sums,
    read_gpu_streams,
)
from ingero.store.arrays.steps import read_step_gpu_streams, read_step_totals, read_steps
from ingero.store.conditions import of_process, within
from ingero.store.errors import NotRecordedError
from ingero.store.reader.questions import Questions
from ingero.store.records import StepTotals, Window


class SyncIntervalQuestions(Questions):
    """Queries for sync intervals."""

    def sync_intervals(self, window: Window, *, process: int | None = None) -> npt.NDArray[np.void]:
        """Sync intervals that ended in the window, in that order: `arrays.SYNC_INTERVAL_DTYPE`."""
        rows = self._each(
            f"SELECT {arrays.SYNC_INTERVAL_COLUMNS}, e.checkpoints FROM raw_sync_intervals e "
            f"WHERE {within('e.sync_end_ns')} AND {of_process('e')} ORDER BY e.sync_end_ns",
            window,
            table="raw_sync_intervals",
            process=process,
        )
        return arrays.sync_intervals(rows)

    def gpu_streams(self, window: Window) -> list[GpuStream]:
        """Every stream with the sync intervals that ended in the window, in short form."""
        if not self.is_recorded("raw_sync_intervals"):
            raise NotRecordedError("sync_intervals", f"Ingero {self.older_version}")
        return read_gpu_streams(self._db, window)

    def step_gpu_streams(self, window: Window) -> list[GpuStream]:
        """The steps of each process that ended in the window, in short form; none in older recordings."""
        return read_step_gpu_streams(self._db, window) if self.is_recorded("raw_steps") else []

    def step_totals(self, window: Window) -> list[StepTotals]:
        """The steps of each process that ended in the window, summed; none in older recordings."""
        return read_step_totals(self._db, window) if self.is_recorded("raw_steps") else []

    def steps(self, window: Window, *, process: int) -> npt.NDArray[np.void]:
        """A process's steps that ended in the window, in order: `arrays.SYNC_INTERVAL_DTYPE` (see `store.steps`)."""
        if not self.is_recorded("raw_steps"):
            return np.zeros(0, arrays.SYNC_INTERVAL_DTYPE)
        return read_steps(self._db, window, process)

    def progress_marks(self, window: Window, *, process: int) -> npt.NDArray[np.void]:
        """The progress marks of a process's streams, by time: `arrays.MARK_DTYPE`; none in older recordings."""
        if not self.is_recorded("raw_progress_marks"):
            return np.zeros(0, arrays.MARK_DTYPE)
        rows = self._each(
            f"SELECT m.device, m.stream, m.time_ns, m.position, m.queued, m.blocked_ns, s.text = 'full_queue' "
            f"FROM raw_progress_marks m JOIN raw_strings s ON s.string = m.kind WHERE {within('m.time_ns')} "
            f"AND {of_process('m')} ORDER BY m.time_ns",
            window,
            table="raw_progress_marks",
            process=process,
        )
        return np.fromiter(map(tuple, rows), arrays.MARK_DTYPE)

    def gpu_stream_sums(self, window: Window) -> list[GpuStreamSums] | None:
        """Exact sums of every stream, to within a commit at the window's edges; None: only sync intervals show them."""
        is_there = self.is_recorded("raw_sync_intervals") and has_digests(self._db, window)
        return read_gpu_stream_sums(self._db, window) if is_there else None
