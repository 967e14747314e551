"""How well the steps of a recording agree with the marks that the program itself wrote."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.incidents.recording import Label
from ingero.demo.workloads import infer, steps

_PHASES = 40  # offsets of a step's marker from its mark that are tried
_UNSTEADY = frozenset({steps.EVAL, infer.PREFILL, infer.REQUEST})  # phases between steps, and what has no period
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScore:
    """Steps found between the first and the last mark. half: rows that hold no mark; double: that hold several.

    Rows inside an evaluation or a prompt count for nothing. Errors are of the rows that hold one mark: how much longer
    or shorter they are than the time from mark to mark.
    """

    true: int
    found: int
    half: int
    double: int
    median_error_ms: float | None = None
    p95_error_ms: float | None = None

    @property
    def is_exact(self) -> bool:
        """Whether every step that was found is one."""
        return bool(self.found) and not self.half and not self.double


def score_recording(database: Path, label: Label) -> StepScore | None:
    """Score the view `steps`; None for a program that repeats nothing, or has no marks."""
    wholes = [mark for mark in label.marks if mark[1] != steps.MICRO]
    if sum(kind not in _UNSTEADY for _, kind in wholes) < 2:
        return None
    sql = "SELECT start_ns, end_ns FROM steps WHERE pid = ? ORDER BY start_ns"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        rows = np.array(connection.execute(sql, (label.stepping_pid,)).fetchall(), np.int64).reshape(-1, 2)
    rows -= label.offset_ns
    # A loop that waits for each part of an accumulated step may be taken either way.
    either = [score(rows, marks) for marks in (wholes, label.marks)]
    return min(either, key=lambda scored: scored.half + scored.double)


def score(rows: Times, marks: Sequence[tuple[int, str]]) -> StepScore:
    """Score (start, end) of steps against the (time, kind) at which they began."""
    begins = np.array([at_ns for at_ns, kind in marks if kind not in _UNSTEADY], np.int64)
    inside = rows[(rows[:, 0] >= begins[0]) & (rows[:, 1] <= begins[-1])]
    phase_ns = _phase(inside, begins)
    held = _held(inside, begins, phase_ns)
    is_judged = (held > 0) | ~_evaluates(inside, marks, begins)
    inside, held = inside[is_judged], held[is_judged]
    errors = _errors(inside[held == 1], begins, phase_ns)
    return StepScore(
        true=len(begins) - 1,
        found=len(inside),
        half=int((held == 0).sum()),
        double=int((held > 1).sum()),
        median_error_ms=float(np.median(errors)) if len(errors) else None,
        p95_error_ms=float(np.percentile(errors, 95)) if len(errors) else None,
    )


def _evaluates(rows: Times, marks: Sequence[tuple[int, str]], begins: Times) -> npt.NDArray[np.bool_]:
    """Which rows meet an evaluation, or a prompt: from its mark to the next step."""
    batches = np.array([at_ns for at_ns, kind in marks if kind in _UNSTEADY], np.int64)
    ends = begins[np.minimum(np.searchsorted(begins, batches), len(begins) - 1)]
    met = np.searchsorted(batches, rows[:, 1]) > np.searchsorted(ends, rows[:, 0], side="right")
    return np.asarray(met, np.bool_)


def _held(rows: Times, marks: Times, phase_ns: int) -> Times:
    """How many marks each row holds if a step's marker comes so long after its mark."""
    places: Times = np.searchsorted(marks, rows - phase_ns, side="right")
    held: Times = places[:, 1] - places[:, 0]
    return held


def _phase(rows: Times, marks: Times) -> int:
    """The offset of markers from marks at which the rows come closest to one mark each: a marker may be anywhere."""
    median_ns = int(np.median(np.diff(marks)))
    tried = [median_ns * number // _PHASES for number in range(_PHASES)]
    misses = [int(((_held(rows, marks, phase_ns) - 1) ** 2).sum()) for phase_ns in tried]
    best = [phase_ns for phase_ns, missed in zip(tried, misses, strict=True) if missed == min(misses)]
    return best[len(best) // 2]


def _errors(rows: Times, marks: Times, phase_ns: int) -> npt.NDArray[Any]:
    """Of each row's length in ms; a marker in mid-step may have more of the step before it, or of the one after."""
    lengths = rows[:, 1] - rows[:, 0]
    between = np.diff(marks)
    first = np.searchsorted(marks, rows[:, 0] - phase_ns, side="right")
    sides = [np.abs(lengths - between[np.clip(first - shift, 0, len(between) - 1)]) / 1e6 for shift in (0, 1)]
    return min(sides, key=lambda errors: float(np.median(errors)) if len(errors) else 0.0)
