"""The trainer's own log: when each step ended and how long it took."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

TRAIN, MICRO, EVAL = "train", "micro", "eval"  # kinds; a loop of several shapes has "shape 0" and so on


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of the log. `t_ns` is CLOCK_MONOTONIC at the step's end; `data_ns` was spent waiting for the batch.

    A step of kind MICRO only adds to the gradients of the step before it. evaluated_ns: when each batch of an
    evaluation at the step's end began.
    """

    step: int
    t_ns: int
    step_ns: int
    data_ns: int = 0
    kind: str = TRAIN
    evaluated_ns: Sequence[int] = ()


def read(path: Path, begin: int = 0) -> list[Step]:
    """Return the steps written so far, from this byte on; a line that is still being written is left out."""
    with path.open("rb") as file:
        file.seek(begin)
        whole_lines = file.read().rpartition(b"\n")[0]
    return [Step(**json.loads(line)) for line in whole_lines.splitlines()]


def whole_bytes(path: Path) -> int:
    """Return how many bytes the lines take that are written so far: where the next one begins."""
    return path.read_bytes().rfind(b"\n") + 1


def marks(path: Path) -> list[tuple[int, str]]:
    """Return when each step truly began, and its kind; of what a program repeats, a micro step is only a part."""
    found = []
    for step in read(path):
        found.append((step.t_ns - step.step_ns, step.kind))
        found.extend((began_ns, EVAL) for began_ns in step.evaluated_ns)
    return found


def between(steps: Iterable[Step], start_ns: int, end_ns: int) -> list[Step]:
    """Return the steps that ended in [start_ns, end_ns)."""
    return [s for s in steps if start_ns <= s.t_ns < end_ns]


def median_ns(steps: Sequence[Step]) -> float:
    """Return the median step time."""
    return statistics.median(s.step_ns for s in steps)


def lost_ns(steps: Sequence[Step], reference_ns: float) -> float:
    """Return how much longer than the reference the steps took in all; steps that catch up count as negative."""
    return sum(s.step_ns - reference_ns for s in steps)
