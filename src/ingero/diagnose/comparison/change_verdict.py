"""Whether a change between two recordings is one: it is larger than the noise of both."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import numpy as np

MIN_CHANGE = 0.03  # two untraced runs differ as much: below, no verdict
NOISE_FACTOR = 3


class Verdict(enum.Enum):
    """What a change is."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference beyond noise"
    NEW = "only after"
    GONE = "only before"
    UNKNOWN = "too few to tell"


class Change(Protocol):
    """What a change of some work is weighed by."""

    @property
    def before(self) -> int:
        """How often it was done before."""

    @property
    def before_mean_ns(self) -> float:
        """How long it took then."""

    @property
    def change_ratio(self) -> float | None:
        """After against before."""

    @property
    def noise_ratio(self) -> float | None:
        """One sigma of it."""


def verdict_of(change_ratio: float | None, noise_ratio: float | None, least: float = MIN_CHANGE) -> Verdict:
    """More is worse: of times. least: a change that is never called one below."""
    if change_ratio is None or noise_ratio is None:
        return Verdict.UNKNOWN
    if abs(change_ratio) <= max(least, NOISE_FACTOR * noise_ratio):
        return Verdict.SAME
    return Verdict.WORSE if change_ratio > 0 else Verdict.BETTER


def overall(changes: Sequence[Change]) -> tuple[float | None, float | None]:
    """Of all the work that is in both, weighed by the time it took before; with its noise."""
    known = [one for one in changes if one.change_ratio is not None and one.noise_ratio is not None]
    weights = np.array([one.before * one.before_mean_ns for one in known])
    if not known or not weights.sum():
        return None, None
    weights /= weights.sum()
    change = sum(weight * (one.change_ratio or 0.0) for weight, one in zip(weights, known, strict=True))
    noise = sum((weight * (one.noise_ratio or 0.0)) ** 2 for weight, one in zip(weights, known, strict=True)) ** 0.5
    return float(change), float(noise)
