"""The verdict on a change between two recordings: better or worse only if it is larger than the noise of both."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import numpy as np

MIN_CHANGE = 0.03  # ratio; two untraced runs differ by as much: below it, no verdict
NOISE_FACTOR = 3


class Verdict(enum.Enum):
    """The verdict on a change."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference beyond noise"
    NEW = "only after"
    GONE = "only before"
    UNKNOWN = "too few to tell"


class Change(Protocol):
    """The change of one type of work between two recordings."""

    @property
    def before(self) -> int:
        """How often the work was done before."""

    @property
    def before_mean_ns(self) -> float:
        """How long it took on average before."""

    @property
    def change_ratio(self) -> float | None:
        """Time after against before, minus 1; None: not known."""

    @property
    def noise_ratio(self) -> float | None:
        """One sigma of the change."""


def verdict_of(change_ratio: float | None, noise_ratio: float | None, min_change: float = MIN_CHANGE) -> Verdict:
    """The verdict on a change of a duration: longer is worse. min_change: smaller changes are never reported."""
    if change_ratio is None or noise_ratio is None:
        return Verdict.UNKNOWN
    if abs(change_ratio) <= max(min_change, NOISE_FACTOR * noise_ratio):
        return Verdict.SAME
    return Verdict.WORSE if change_ratio > 0 else Verdict.BETTER


def overall(changes: Sequence[Change]) -> tuple[float | None, float | None]:
    """The change of all work that is in both recordings, weighted by the time it took before, and its noise."""
    known = [change for change in changes if change.change_ratio is not None and change.noise_ratio is not None]
    weights = np.array([change.before * change.before_mean_ns for change in known])
    if not known or not weights.sum():
        return None, None
    weights /= weights.sum()
    change = sum(weight * (one.change_ratio or 0.0) for weight, one in zip(weights, known, strict=True))
    noise = sum((weight * (one.noise_ratio or 0.0)) ** 2 for weight, one in zip(weights, known, strict=True)) ** 0.5
    return float(change), float(noise)
