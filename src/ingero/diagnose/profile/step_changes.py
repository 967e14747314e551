"""What changed in the steps of two recordings, and in what a profiler measured of their GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.change_verdict import Verdict, verdict_of
from ingero.diagnose.evidence import Evidence
from ingero.diagnose.profile.report import ProfileReport
from ingero.diagnose.profile.step_comparison import StepPair, has_steps, is_same_work, step_pairs
from ingero.diagnose.profile.words import who

Array = np.ndarray[Any, np.dtype[Any]]


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
    """All of it. are_known: one of the recordings has steps."""

    steps: tuple[StepChange, ...]
    profiles: tuple[ProfileChange, ...]
    are_known: bool


def step_changes(before: Evidence, after: Evidence) -> StepChanges:
    """Of steps of one type in one process, most time first."""
    return StepChanges(
        steps=tuple(_step_change(pair) for pair in step_pairs(before, after)),
        profiles=tuple(_profile_changes(before.profiles.reports, after.profiles.reports)),
        are_known=has_steps(before) or has_steps(after),
    )


def _step_change(pair: StepPair) -> StepChange:
    first, second = pair.before, pair.after
    return StepChange(
        process=pair.process,
        name=pair.name,
        before=len(first.step_ns),
        after=len(second.step_ns),
        before_mean_ns=float(first.step_ns.mean()),
        after_mean_ns=float(second.step_ns.mean()),
        before_median_ns=float(np.median(first.step_ns)),
        after_median_ns=float(np.median(second.step_ns)),
        before_busy_ns=_optional_mean(first.busy_ns),
        after_busy_ns=_optional_mean(second.busy_ns),
        before_idle_ns=None if first.busy_ns is None else float((first.step_ns - first.busy_ns).mean()),
        after_idle_ns=None if second.busy_ns is None else float((second.step_ns - second.busy_ns).mean()),
        change_ratio=pair.change_ratio,
        median_change_ratio=pair.median_change_ratio,
        noise_ratio=pair.noise_ratio,
        verdict=verdict_of(pair.median_change_ratio, pair.noise_ratio),
    )


def _optional_mean(lengths: Array | None) -> float | None:
    return None if lengths is None else float(lengths.mean())


def _profile_changes(first: Sequence[ProfileReport], second: Sequence[ProfileReport]) -> Iterator[ProfileChange]:
    """Where both have as many processes that run the same kernels."""
    pairs = zip(first, second, strict=True) if len(first) == len(second) else ()
    for was, now in (pair for pair in pairs if is_same_work(pair[0].work, pair[1].work)):
        yield ProfileChange(
            process=who(was.process),
            before_busy_ratio=was.busy_ratio,
            after_busy_ratio=now.busy_ratio,
            before_blocked_ratio=sum(was.blocked.values()),
            after_blocked_ratio=sum(now.blocked.values()),
            before_data_loading_ratio=was.data_loading_ratio,
            after_data_loading_ratio=now.data_loading_ratio,
            before_collective_wait_ratio=was.collective_wait_ns / was.wall_ns,
            after_collective_wait_ratio=now.collective_wait_ns / now.wall_ns,
        )
