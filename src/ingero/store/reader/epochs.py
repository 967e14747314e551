"""The epochs of lanes: one by one, in short, and their exact sums."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ingero.store import arrays
from ingero.store.conditions import of_process, within
from ingero.store.errors import NotRecordedError
from ingero.store.lanes import Lane, LaneSums, has_digests, read_lane_sums, read_lanes
from ingero.store.reader.questions import Questions
from ingero.store.records import StepTotals, Window
from ingero.store.steps import read_step_lanes, read_step_totals, read_steps


class EpochQuestions(Questions):
    """Questions about epochs."""

    def epochs(self, window: Window, *, process: int | None = None) -> npt.NDArray[np.void]:
        """Epochs that ended in the window, in that order: `arrays.EPOCH_DTYPE`."""
        rows = self._each(
            f"SELECT {arrays.EPOCH_COLUMNS}, e.checkpoints FROM raw_epochs e WHERE {within('e.b_ns')} "
            f"AND {of_process('e')} ORDER BY e.b_ns",
            window,
            table="raw_epochs",
            process=process,
        )
        return arrays.epochs(rows)

    def lanes(self, window: Window) -> list[Lane]:
        """Every lane with the epochs that ended in the window, in short."""
        if not self.is_recorded("raw_epochs"):
            raise NotRecordedError("epochs", f"Ingero {self.older_version}")
        return read_lanes(self._db, window)

    def step_lanes(self, window: Window) -> list[Lane]:
        """The steps of each process that ended in the window, in short; none in older recordings."""
        return read_step_lanes(self._db, window) if self.is_recorded("raw_steps") else []

    def step_totals(self, window: Window) -> list[StepTotals]:
        """The steps of each process that ended in the window, summed; none in older recordings."""
        return read_step_totals(self._db, window) if self.is_recorded("raw_steps") else []

    def steps(self, window: Window, *, process: int) -> npt.NDArray[np.void]:
        """Steps of a process that ended in the window, in that order: `arrays.EPOCH_DTYPE` (see `store.steps`)."""
        if not self.is_recorded("raw_steps"):
            return np.zeros(0, arrays.EPOCH_DTYPE)
        return read_steps(self._db, window, process)

    def progress_marks(self, window: Window, *, process: int) -> npt.NDArray[np.void]:
        """How far the streams of a process were, by time: `arrays.MARK_DTYPE`; none in older recordings."""
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

    def lane_sums(self, window: Window) -> list[LaneSums] | None:
        """The exact sums of every lane, to within a commit at the window's edges; None where only epochs can tell."""
        is_there = self.is_recorded("raw_epochs") and has_digests(self._db, window)
        return read_lane_sums(self._db, window) if is_there else None
