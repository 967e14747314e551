"""The steps of a profiled process: their times, how busy the GPU was in each, and which of them are typical."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.profile.blocked import GpuWaits
from ingero.diagnose.profile.intervals import Intervals, united
from ingero.diagnose.profile.recording import ProfiledProcess

Array = np.ndarray[Any, np.dtype[Any]]

MIN_STEPS = 3  # from here on a median is meaningful, and one slow step does not decide
# Times the median: a longer step is a warm-up or an accident and says nothing about the program's pace.
MAX_TYPICAL_RATIO = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUse:
    """One step: its time, the GPU's busy time within it, and how long the launching threads waited for the GPU."""

    start_ns: int
    end_ns: int
    step_type: str
    how: str
    launches: int
    busy_ns: int
    blocked_ns: int
    is_typical: bool

    @property
    def step_ns(self) -> int:
        """Duration of the step."""
        return self.end_ns - self.start_ns

    @property
    def idle_ns(self) -> int:
        """GPU idle time within the step."""
        return self.step_ns - self.busy_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The steps that the program itself marked: how many, and when each began and ended."""

    count: int
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]


def steps_of(profile: ProfiledProcess, busy: Intervals, waits: GpuWaits) -> tuple[StepUse, ...]:
    """The steps, in order."""
    rows = profile.steps
    if not len(rows):
        return ()
    begins, ends = rows["start_ns"], rows["end_ns"]
    busy_ns, blocked_ns = busy.between(begins, ends), waits.whole.between(begins, ends)
    typical = is_typical(ends - begins, rows["step_type"])
    return tuple(
        StepUse(
            start_ns=int(row["start_ns"]),
            end_ns=int(row["end_ns"]),
            step_type=profile.texts.get(int(row["step_type"]), ""),
            how=profile.texts.get(int(row["how"]), ""),
            launches=int(row["launches"]),
            busy_ns=int(busy_ns[place]),
            blocked_ns=int(blocked_ns[place]),
            is_typical=bool(typical[place]),
        )
        for place, row in enumerate(rows)
    )


def is_typical(lasted: Array, types: Array) -> Array:
    """Which steps are no warm-up and no accident: not far above the median of their type."""
    found = np.zeros(len(lasted), bool)
    for number in np.unique(types):
        mine = types == number
        found[mine] = lasted[mine] <= MAX_TYPICAL_RATIO * np.median(lasted[mine])
    return found


def typical_intervals(steps: Sequence[StepUse]) -> Intervals | None:
    """The time of the typical steps, which the report is about; None where there are too few steps."""
    if len(steps) < MIN_STEPS:
        return None
    mine = [step for step in steps if step.is_typical]
    return united(np.array([one.start_ns for one in mine]), np.array([one.end_ns for one in mine]))


def marks_of(profile: ProfiledProcess) -> Marks:
    """The steps as a profiler's schedule or the program marked them."""
    marks = profile.ranges_of("step")
    return Marks(count=len(marks), start_ns=tuple(map(int, marks["start_ns"])), end_ns=tuple(map(int, marks["end_ns"])))
