"""Two recordings of one program compared step by step, where there are steps and no sync intervals.

Steps are of one type if they do the same work: about as many enqueues, and the same kernels. The change of the mean is
reported; it counts as a change if that of the median, which no single slow step moves, exceeds the noise of both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.profile.steps import MIN_STEPS

Array = np.ndarray[Any, np.dtype[Any]]

# Of the launches in a step: two settings of one data loader differ by 1.8%, programs by 5% and more.
_MAX_LAUNCH_DIFFERENCE_RATIO = 0.03
# Of the kernels that ran, by full name: two recordings of one program share 97%, of two programs at most 31%.
_MIN_SHARED_KERNELS_RATIO = 0.6
_MEDIAN_ERROR = 1.2533  # of a median's standard error to a mean's, of a normal distribution
_SIGMA_PER_DEVIATION = 1.4826  # of a normal distribution's median absolute deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGroup:
    """The steps of one type of one process. noise_ratio: one sigma of the median; None where they are too few.

    launches: in the median step. busy_ns and idle_ns: of the GPU in the mean step, None where no profiler measured it.
    """

    process: str
    step_type: str
    launches: float
    count: int
    sum_ns: float
    mean_ns: float
    median_ns: float
    noise_ratio: float | None
    busy_ns: float | None
    idle_ns: float | None
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


def step_pairs(before: Sequence[StepGroup], after: Sequence[StepGroup]) -> Iterator[StepPair]:
    """Pairs of step groups, most time first. Processes are paired by rank, else by GPU, else in order."""
    second = list(after)
    for group in sorted(before, key=lambda one: -one.sum_ns):
        other = next((one for one in second if _is_same(group, one)), None)
        if other is not None:
            second.remove(other)
            yield _pair(group, other)


def step_groups(evidence: Evidence) -> Iterator[StepGroup]:
    """The steps of each process, as a profiler measured them, else as they were found while it was recorded."""
    yield from _groups_of_profiles(evidence) if evidence.profiles.reports else _groups_of_recording(evidence)


def _group(
    process: str, step_type: str, launches: Array, lasted: Array, busy: Array | None, work: Mapping[str, float]
) -> StepGroup:
    return StepGroup(
        process=process,
        step_type=step_type,
        launches=float(np.median(launches)),
        count=len(lasted),
        sum_ns=float(lasted.sum()),
        mean_ns=float(lasted.mean()),
        median_ns=float(np.median(lasted)),
        noise_ratio=_noise(lasted) if len(lasted) >= MIN_STEPS else None,
        busy_ns=None if busy is None else float(busy.mean()),
        idle_ns=None if busy is None else float((lasted - busy).mean()),
        work=work,
    )


def _groups_of_profiles(evidence: Evidence) -> Iterator[StepGroup]:
    reports = evidence.profiles.reports
    ranks = [report.process.rank for report in reports]
    gpus = [report.device for report in reports]
    for place, report in enumerate(reports):
        by_type: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for step in report.steps:
            by_type[step.step_type].append((step.step_ns, step.busy_ns, step.launches))
        for name, rows in by_type.items():
            lasted, busy, launches = (np.array(column, np.int64) for column in zip(*rows, strict=True))
            yield _group(_role(ranks, gpus, place), name, launches, lasted, busy, report.work)


def _role(ranks: Sequence[int | None], gpus: Sequence[int], place: int) -> str:
    """A name that identifies a process among those of its job in any recording."""
    if ranks[place] is not None:
        return f"rank {ranks[place]}"
    return f"GPU {gpus[place]}" if len(set(gpus)) == len(gpus) else f"process {place + 1}"


def _groups_of_recording(evidence: Evidence) -> Iterator[StepGroup]:
    """Steps of a live recording."""
    reader, window = evidence.reader, evidence.window
    for place, process in enumerate(reader.processes_with_steps(window), 1):
        rows = reader.step_times(window, process=process)
        for number in np.unique(rows["step_type"]):
            mine = rows[rows["step_type"] == number]
            known = evidence.processes.get(process)
            role = f"rank {known.rank}" if known and known.rank is not None else f"process {place}"
            lasted = mine["end_ns"] - mine["start_ns"]
            yield _group(role, evidence.text(int(number)), mine["launches"], lasted, None, {})


def _is_same(first: StepGroup, second: StepGroup) -> bool:
    if first.process != second.process:
        return False
    if not first.work or not second.work:
        return first.step_type == second.step_type
    is_alike = abs(second.launches / max(first.launches, 1) - 1) <= _MAX_LAUNCH_DIFFERENCE_RATIO
    return is_alike and runs_same_kernels(first.work, second.work)


def runs_same_kernels(first: Mapping[str, float], second: Mapping[str, float]) -> bool:
    """Whether two programs run the same kernels, by their shares."""
    return sum(min(share, second.get(name, 0.0)) for name, share in first.items()) >= _MIN_SHARED_KERNELS_RATIO


def _pair(first: StepGroup, second: StepGroup) -> StepPair:
    is_known = min(first.count, second.count) >= MIN_STEPS and first.mean_ns > 0 and first.median_ns > 0
    noise = None
    if first.noise_ratio is not None and second.noise_ratio is not None:
        noise = (first.noise_ratio**2 + second.noise_ratio**2) ** 0.5
    return StepPair(
        process=first.process,
        name=first.step_type,
        before=first,
        after=second,
        change_ratio=second.mean_ns / first.mean_ns - 1 if is_known else None,
        median_change_ratio=second.median_ns / first.median_ns - 1 if is_known else None,
        noise_ratio=noise if is_known else None,
    )


def _noise(lasted: Array) -> float | None:
    """Standard error of the median as a ratio, by the median deviation: two slow steps of six do not widen it."""
    median = np.median(lasted)
    if not median:
        return None
    sigma = _SIGMA_PER_DEVIATION * np.median(np.abs(lasted - median))
    return float(_MEDIAN_ERROR * sigma / len(lasted) ** 0.5 / median)
