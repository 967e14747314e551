"""Steps, and the data of imported profiles: measured GPU activities, user ranges, every call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ingero.store.arrays import profile_arrays
from ingero.store.conditions import of_process, within
from ingero.store.reader.questions import Questions, listed
from ingero.store.records import Window


class ProfileQuestions(Questions):
    """Queries for steps and for data that a profiler measured."""

    def profiled_processes(self, window: Window) -> list[int]:
        """Numbers of the processes with GPU activities that began in the window; none in a live recording."""
        if not self.is_recorded("raw_gpu_activities"):
            return []
        sql = f"SELECT DISTINCT process FROM raw_gpu_activities WHERE {within('start_ns')} ORDER BY process"
        return [number for (number,) in self._rows(sql, window)]

    def has_gpu_activities(self, window: Window, *, process: int) -> bool:
        """Whether a profiler measured a process's GPU activities."""
        return process in self.profiled_processes(window)

    def gpu_activities(self, window: Window, *, process: int) -> npt.NDArray[np.void]:
        """The GPU activities of a process, by begin: `profile_arrays.ACTIVITY_DTYPE`."""
        return self._array(
            f"SELECT {profile_arrays.ACTIVITY_COLUMNS} FROM raw_gpu_activities",
            profile_arrays.ACTIVITY_DTYPE,
            window,
            process,
        )

    def user_ranges(self, window: Window, *, process: int) -> npt.NDArray[np.void]:
        """The marked ranges that overlap the window, by begin: `profile_arrays.RANGE_DTYPE`."""
        sql = (
            f"SELECT {profile_arrays.RANGE_COLUMNS} FROM raw_user_ranges WHERE start_ns < :end "
            f"AND start_ns + duration_ns > :begin AND {of_process()} ORDER BY start_ns, duration_ns DESC"
        )
        return profile_arrays.rows_of(self._each(sql, window, process=process), profile_arrays.RANGE_DTYPE)

    def profiled_calls(self, window: Window, *, sources: Sequence[int], process: int) -> npt.NDArray[np.void]:
        """Every recorded call of these sources in short form, by begin: `profile_arrays.PROFILED_CALL_DTYPE`."""
        return self._array(
            f"SELECT {profile_arrays.CALL_COLUMNS} FROM raw_events",
            profile_arrays.PROFILED_CALL_DTYPE,
            window,
            process,
            also=f"AND source IN ({listed(sources)})",
        )

    def step_times(self, window: Window, *, process: int) -> npt.NDArray[np.void]:
        """The steps of a process with their begins and ends: `profile_arrays.STEP_DTYPE`."""
        if not self.is_recorded("raw_steps"):
            return np.zeros(0, profile_arrays.STEP_DTYPE)
        return self._array(
            f"SELECT {profile_arrays.STEP_COLUMNS} FROM raw_steps", profile_arrays.STEP_DTYPE, window, process
        )

    def processes_with_steps(self, window: Window) -> list[int]:
        """Numbers of the processes with known steps."""
        if not self.is_recorded("raw_steps"):
            return []
        sql = f"SELECT DISTINCT process FROM raw_steps WHERE {within('start_ns')} ORDER BY process"
        return [number for (number,) in self._rows(sql, window)]

    def kernel_names(self, process: int) -> dict[int, tuple[str, str]]:
        """The short and the full names of a process's kernels, by function."""
        rows = self._rows(
            "SELECT function, coalesce(short_name, name, ''), coalesce(name, short_name, '') FROM raw_kernels "
            "WHERE process = :process ORDER BY generation",
            process=process,
        )
        return {function: (short, whole) for function, short, whole in rows}

    def _array(
        self, select: str, dtype: np.dtype[np.void], window: Window, process: int, *, also: str = ""
    ) -> npt.NDArray[np.void]:
        sql = f"{select} WHERE {within('start_ns')} AND {of_process()} {also} ORDER BY start_ns"
        return profile_arrays.rows_of(self._each(sql, window, process=process), dtype)
