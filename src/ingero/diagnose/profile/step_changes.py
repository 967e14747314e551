"""Changes in the steps of two recordings, and in what a profiler measured of their GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ingero.diagnose.comparison.change_verdict import Verdict, verdict_of
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.profile.step_comparison import StepGroup, StepPair, runs_same_kernels, step_pairs
from ingero.diagnose.profile.words import process_label


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """The steps of one type of one process. The verdict is about the median, which no single slow step moves.

    change_ratio: of the mean; noise_ratio: one sigma of the median's. busy and idle: of the GPU in the mean step, None
    where no profiler measured them.
    """

    process: str
    name: str
    before: int
    after: int
    before_mean_ns: float
    after_mean_ns: float
    before_median_ns: float
    after_median_ns: float
    before_busy_ns: float | None
    after_busy_ns: float | None
    before_idle_ns: float | None
    after_idle_ns: float | None
    change_ratio: float | None
    median_change_ratio: float | None
    noise_ratio: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileChange:
    """One process of both, as a profiler measured it: shares of the time that each profile covers."""

    process: str
    before_busy_ratio: float
    after_busy_ratio: float
    before_blocked_ratio: float
    after_blocked_ratio: float
    before_data_loading_ratio: float
    after_data_loading_ratio: float
    before_collective_wait_ratio: float
    after_collective_wait_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChanges:
    """All changes between two recordings. are_known: at least one of them has steps."""

    steps: tuple[StepChange, ...]
    profiles: tuple[ProfileChange, ...]
    are_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSide:
    """One process of one recording, as a profiler measured it: shares of the time that the profile covers.

    work: share of each kernel, by full name.
    """

    process: str
    work: Mapping[str, float]
    busy_ratio: float
    blocked_ratio: float
    data_loading_ratio: float
    collective_wait_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSide:
    """The steps of one recording, and what a profiler measured of its processes."""

    steps: tuple[StepGroup, ...]
    profiles: tuple[ProfileSide, ...]


def profile_sides(evidence: Evidence) -> Iterator[ProfileSide]:
    """One side of the comparison for each profiled process."""
    for report in evidence.profiles.reports:
        yield ProfileSide(
            process=process_label(report.process),
            work=report.work,
            busy_ratio=report.busy_ratio,
            blocked_ratio=sum(report.blocked.values()),
            data_loading_ratio=report.data_loading_ratio,
            collective_wait_ratio=report.collective_wait_ns / report.wall_ns,
        )


def step_changes(before: StepSide, after: StepSide) -> StepChanges:
    """The changes by step type and process, most time first."""
    return StepChanges(
        steps=tuple(_step_change(pair) for pair in step_pairs(before.steps, after.steps)),
        profiles=tuple(_profile_changes(before.profiles, after.profiles)),
        are_known=bool(before.steps or after.steps),
    )


def _step_change(pair: StepPair) -> StepChange:
    first, second = pair.before, pair.after
    return StepChange(
        process=pair.process,
        name=pair.name,
        before=first.count,
        after=second.count,
        before_mean_ns=first.mean_ns,
        after_mean_ns=second.mean_ns,
        before_median_ns=first.median_ns,
        after_median_ns=second.median_ns,
        before_busy_ns=first.busy_ns,
        after_busy_ns=second.busy_ns,
        before_idle_ns=first.idle_ns,
        after_idle_ns=second.idle_ns,
        change_ratio=pair.change_ratio,
        median_change_ratio=pair.median_change_ratio,
        noise_ratio=pair.noise_ratio,
        verdict=verdict_of(pair.median_change_ratio, pair.noise_ratio),
    )


def _profile_changes(first: Sequence[ProfileSide], second: Sequence[ProfileSide]) -> Iterator[ProfileChange]:
    """The changes of the processes that run the same kernels, if both recordings have equally many processes."""
    pairs = zip(first, second, strict=True) if len(first) == len(second) else ()
    for was, now in (pair for pair in pairs if runs_same_kernels(pair[0].work, pair[1].work)):
        yield ProfileChange(
            process=was.process,
            before_busy_ratio=was.busy_ratio,
            after_busy_ratio=now.busy_ratio,
            before_blocked_ratio=was.blocked_ratio,
            after_blocked_ratio=now.blocked_ratio,
            before_data_loading_ratio=was.data_loading_ratio,
            after_data_loading_ratio=now.data_loading_ratio,
            before_collective_wait_ratio=was.collective_wait_ratio,
            after_collective_wait_ratio=now.collective_wait_ratio,
        )
