"""Compares a recording with the marks of the traced loop: steps, cost, causes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bench.incidents.findings import UNEXPLAINED
from bench.incidents.step_score import StepScore, score
from bench.real_gpu.plan import Loop
from ingero.demo.workloads import steps
from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import Diagnosis
from ingero.store.reader import open_reader

Times = npt.NDArray[np.int64]
Interval = tuple[int, int]  # begin and end, monotonic ns


class Marks(msgspec.Struct, kw_only=True):
    """The marks of a loop: the start of each step, and the end of the last one. Monotonic ns."""

    pid: int
    unix_minus_mono_ns: int
    marks_ns: list[int]
    profiled_ns: list[int] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """The lengths (ms) of the steps that lie entirely within some intervals."""

    count: int
    median_ms: float
    mean_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisSummary:
    """A summary of a diagnosis: causes of incidents, the number of unexplained ones, and the verdict."""

    causes: list[str]
    unexplained: int
    verdict: str

    def wrong(self, loop: Loop) -> list[str]:
        """Causes that cannot be right."""
        return sorted(set(self.causes) - loop.causes)


def read_marks(folder: Path) -> Marks:
    """The marks of a loop that has ended."""
    return msgspec.json.decode((folder / "marks.json").read_bytes(), type=Marks)


def lengths(marks: Marks, intervals: Sequence[Interval], *, without: Sequence[Interval] = ()) -> Lengths:
    """Of the steps in some intervals that touch none of the others; the profiler's steps are left out.

    Raises:
        ValueError: no step is left.
    """
    times = np.asarray(marks.marks_ns, np.int64)
    begins, ends = times[:-1], times[1:]
    chosen = np.zeros(len(begins), np.bool_)
    for begin_ns, end_ns in intervals:
        chosen |= (begins >= begin_ns) & (ends <= end_ns)
    profiler = [(marks.profiled_ns[0], marks.profiled_ns[-1])] if marks.profiled_ns else []
    for begin_ns, end_ns in [*without, *profiler]:
        chosen &= (ends <= begin_ns) | (begins > end_ns)
    found = (ends - begins)[chosen] / 1e6
    if not len(found):
        raise ValueError("no step lies whole in the intervals")
    return Lengths(count=len(found), median_ms=float(np.median(found)), mean_ms=float(found.mean()))


def score_steps(database: Path, marks: Marks) -> StepScore | None:
    """The view `steps` against the marks; None where it has none. true: what the program did in the time it covers."""
    sql = "SELECT start_ns, end_ns FROM steps WHERE pid = ? ORDER BY start_ns"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        rows: Times = np.array(connection.execute(sql, (marks.pid,)).fetchall(), np.int64).reshape(-1, 2)
    if not len(rows):
        return None
    rows -= marks.unix_minus_mono_ns
    times = np.asarray(marks.marks_ns, np.int64)
    first, last = (int(np.searchsorted(times, at_ns, "right")) for at_ns in (rows[0, 0], rows[-1, 1]))
    around = times[max(0, first - 1) : last + 1]
    return replace(score(rows, [(int(at_ns), steps.TRAIN) for at_ns in around]), true=last - first)


def said(database: Path, pid: int) -> DiagnosisSummary:
    """The diagnosis of a recording, about a process."""
    with open_reader(database) as reader:
        window = reader.window(None, time.time_ns())
        assert window is not None, "an empty recording"
        diagnosis = diagnose(reader, window)
    return summary_of(diagnosis, pid)


def summary_of(diagnosis: Diagnosis, pid: int) -> DiagnosisSummary:
    """The same of a diagnosis."""
    causes = [incident.cause for incident in diagnosis.incidents]
    verdicts = [verdict.text for verdict in diagnosis.verdicts if verdict.pid == pid]
    return DiagnosisSummary(
        causes=sorted(set(causes) - {UNEXPLAINED}),
        unexplained=causes.count(UNEXPLAINED),
        verdict=verdicts[0] if verdicts else "",
    )


def mean_of(seconds: Sequence[dict[str, Any]], name: str) -> float:
    """The mean of a figure over the agent's seconds, in percent."""
    return 100 * sum(float(second[name]) for second in seconds) / max(1, len(seconds))
