"""Two recordings of one program compared step by step, where there are steps and no sync intervals.

Steps are of one type if they do the same work: about as many enqueues, and the same kernels. A change of the mean is
told, and called one if that of the median, which no single slow step moves, is larger than the noise of both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.evidence import Evidence
from ingero.diagnose.profile.steps import MIN_STEPS

Array = np.ndarray[Any, np.dtype[Any]]

# Of the launches in a step: two settings of one loader differ by 1.8%, programs by 5% and more.
_SAME_LAUNCHES = 0.03
# Of the kernels that ran, by whole name: two recordings of one program share 97%, of two programs at most 31%.
_SAME_KERNELS = 0.6
_MEDIAN_ERROR = 1.2533  # of a median's standard error to a mean's, of a normal distribution
_SIGMA_PER_DEVIATION = 1.4826  # of a normal distribution's median absolute deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGroup:
    """The steps of one type of one process. busy_ns: of each step; None where no profiler measured it."""

    process: str
    step_type: str
    launches: float
    step_ns: Array
    busy_ns: Array | None
    work: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPair:
    """The steps of one type in both recordings.

    change_ratio: of the mean, median_change_ratio: of the median; noise_ratio: one sigma of the latter. None where one
    of them has too few steps.
    """

    process: str
    name: str
    before: StepGroup
    after: StepGroup
    change_ratio: float | None
    median_change_ratio: float | None
    noise_ratio: float | None


def step_pairs(before: Evidence, after: Evidence) -> Iterator[StepPair]:
    """Most time first. Processes are paired by rank, else by GPU, else in order."""
    first, second = list(_groups(before)), list(_groups(after))
    for group in sorted(first, key=lambda one: -float(one.step_ns.sum())):
        other = next((one for one in second if _is_same(group, one)), None)
        if other is not None:
            second.remove(other)
            yield _pair(group, other)


def has_steps(evidence: Evidence) -> bool:
    """Whether steps of any process are known."""
    return any(True for _ in _groups(evidence))


def _groups(evidence: Evidence) -> Iterator[StepGroup]:
    yield from _measured(evidence) if evidence.profiles.reports else _found(evidence)


def _measured(evidence: Evidence) -> Iterator[StepGroup]:
    reports = evidence.profiles.reports
    ranks = [report.process.rank for report in reports]
    gpus = [report.device for report in reports]
    for place, report in enumerate(reports):
        by_type: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for step in report.steps:
            by_type[step.step_type].append((step.step_ns, step.busy_ns, step.launches))
        for name, rows in by_type.items():
            lasted, busy, launches = (np.array(column, np.int64) for column in zip(*rows, strict=True))
            yield StepGroup(
                process=_role(ranks, gpus, place),
                step_type=name,
                launches=float(np.median(launches)),
                step_ns=lasted,
                busy_ns=busy,
                work=report.work,
            )


def _role(ranks: Sequence[int | None], gpus: Sequence[int], place: int) -> str:
    """What tells a process from the others of its job in any recording."""
    if ranks[place] is not None:
        return f"rank {ranks[place]}"
    return f"GPU {gpus[place]}" if len(set(gpus)) == len(gpus) else f"process {place + 1}"


def _found(evidence: Evidence) -> Iterator[StepGroup]:
    """Steps of a live recording."""
    reader, window = evidence.reader, evidence.window
    for place, process in enumerate(reader.processes_with_steps(window), 1):
        rows = reader.step_times(window, process=process)
        for number in np.unique(rows["step_type"]):
            mine = rows[rows["step_type"] == number]
            known = evidence.processes.get(process)
            yield StepGroup(
                process=f"rank {known.rank}" if known and known.rank is not None else f"process {place}",
                step_type=evidence.text(int(number)),
                launches=float(np.median(mine["launches"])),
                step_ns=mine["end_ns"] - mine["start_ns"],
                busy_ns=None,
                work={},
            )


def _is_same(first: StepGroup, second: StepGroup) -> bool:
    if first.process != second.process:
        return False
    if not first.work or not second.work:
        return first.step_type == second.step_type
    is_alike = abs(second.launches / max(first.launches, 1) - 1) <= _SAME_LAUNCHES
    return is_alike and is_same_work(first.work, second.work)


def is_same_work(first: Mapping[str, float], second: Mapping[str, float]) -> bool:
    """Whether two programs run the same kernels, by their shares."""
    return sum(min(share, second.get(name, 0.0)) for name, share in first.items()) >= _SAME_KERNELS


def _pair(first: StepGroup, second: StepGroup) -> StepPair:
    is_known = min(len(first.step_ns), len(second.step_ns)) >= MIN_STEPS
    was, now = first.step_ns, second.step_ns
    return StepPair(
        process=first.process,
        name=first.step_type,
        before=first,
        after=second,
        change_ratio=float(now.mean() / was.mean() - 1) if is_known else None,
        median_change_ratio=float(np.median(now) / np.median(was) - 1) if is_known else None,
        noise_ratio=(_noise(was) ** 2 + _noise(now) ** 2) ** 0.5 if is_known else None,
    )


def _noise(lasted: Array) -> float:
    """Standard error of the median as a ratio, by the median deviation: two slow steps of six do not widen it."""
    median = np.median(lasted)
    sigma = _SIGMA_PER_DEVIATION * np.median(np.abs(lasted - median))
    return float(_MEDIAN_ERROR * sigma / len(lasted) ** 0.5 / median)
