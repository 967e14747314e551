"""The trainer's own log: when each step ended and how long it took."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of the log. `t_ns` is CLOCK_MONOTONIC at the step's end; `data_ns` was spent waiting for the batch."""

    step: int
    t_ns: int
    step_ns: int
    data_ns: int


def read(path: Path) -> list[Step]:
    """Return the steps written so far; a line that is still being written is left out."""
    whole_lines = path.read_text().rpartition("\n")[0]
    return [Step(**json.loads(line)) for line in whole_lines.splitlines()]


def between(steps: Iterable[Step], start_ns: int, end_ns: int) -> list[Step]:
    """Return the steps that ended in [start_ns, end_ns)."""
    return [s for s in steps if start_ns <= s.t_ns < end_ns]


def median_ns(steps: Sequence[Step]) -> float:
    """Return the median step time."""
    return statistics.median(s.step_ns for s in steps)


def lost_ns(steps: Sequence[Step], reference_ns: float) -> float:
    """Return what the steps took beyond the reference, signed: catching up repays a loss."""
    return sum(s.step_ns - reference_ns for s in steps)
