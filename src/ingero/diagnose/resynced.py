"""Stretches in which a loop waits for the device more often than it did: the same launches, cut into more epochs.

Such epochs are of other classes, which have no healthier regime to be compared with. So their time is compared per
launch with the stretch before, second by second.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingero.diagnose.excess import DEVICE, kept_waiting, spread
from ingero.diagnose.model import Bucket, Part
from ingero.diagnose.pacing import is_step
from ingero.diagnose.stretches import MIN_LOSS_NS, MIN_RATIO
from ingero.diagnose.unseen_work import is_unseen
from ingero.store.records import Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

MORE_DRAINS = 1.5  # per launch, at least so many times as many
_SAME_DRAINS = 1.15
_SAME_WORK = 1.25  # bytes per launch differ by at most so much: else it does other work
_LEAST_SECONDS = 2  # of each
_BUSY = 0.25  # of the median second's launches; others are starts, ends and pauses
_SYNCS_A_STEP = 0.5
_MOST_TIMES = 100.0  # as often: more is said of a loop that hardly ever waited
_SUSTAINED = 0.8  # of the seconds of the stretch


@dataclass(frozen=True, slots=True)
class Resynced:
    """A stretch with more drains per launch: which epochs are in it, and which are its reference."""

    inside: Array
    usual: Array
    window: Window
    drains: float  # per launch, against the reference
    pace_ns: float  # per launch in the reference
    lost_ns: int  # what its epochs took beyond that, all together

    @property
    def is_enough(self) -> bool:
        """Whether that is as much as is told."""
        return self.lost_ns >= MIN_LOSS_NS

    def is_beginning(self, until_ns: int, *, since_ns: int) -> bool:
        """Whether it has begun since then and was still there a moment before `until_ns`, with little lost yet."""
        is_there = self.window.begin_ns >= since_ns and until_ns - self.window.end_ns < SECOND_NS
        return is_there and not self.is_enough

    def wanted_ns(self, epochs: Array) -> Array:
        """How long each epoch had lasted at the reference's pace."""
        wanted: Array = epochs["launches"] * self.pace_ns
        return wanted


def resynced(epochs: Array) -> Resynced | None:
    """The stretch of a lane that loses its share of time with more drains per launch, however little yet, or None.

    Of those whose launches are known.
    """
    seen = ~is_unseen(epochs)
    found = _resynced(epochs[seen])
    if found is None or seen.all():
        return found
    inside, usual = (np.zeros(len(epochs), bool) for _ in range(2))
    inside[seen], usual[seen] = found.inside, found.usual
    return replace(found, inside=inside, usual=usual)


def _resynced(epochs: Array) -> Resynced | None:
    if not len(epochs) or epochs["launches"].sum() <= 0:
        return None
    seconds = (epochs["b_ns"] - int(epochs["b_ns"][0])) // SECOND_NS
    regimes = _regimes(epochs, seconds)
    if regimes is None:
        return None
    few, between, drains = regimes
    members = epochs[between[seconds]]
    wall = int((members["b_ns"] - members["a_ns"]).sum())
    pace_ns = _pace_ns(epochs[few[seconds]])
    found = Resynced(
        inside=between[seconds],
        usual=few[seconds],
        window=Window(begin_ns=int(members["a_ns"][0]), end_ns=int(members["b_ns"][-1]) + 1),
        drains=drains,
        pace_ns=pace_ns,
        lost_ns=int(wall - pace_ns * float(members["launches"].sum())),
    )
    return found if found.lost_ns >= MIN_RATIO * wall else None


def _regimes(epochs: Array, seconds: Array) -> tuple[Array, Array, float] | None:
    """Seconds with few drains per launch, the stretch of those with many, and how many times as many they have.

    None where these are not two regimes.
    """
    launches = np.bincount(seconds, weights=epochs["launches"])
    # a step by repetition that is never waited for ends all the same: with its waits it is one more
    drains = np.bincount(seconds, weights=1 + epochs["joined"] + epochs["syncs"]) / np.maximum(launches, 1)
    busy = launches >= _BUSY * np.median(launches[launches > 0])
    least = float(np.quantile(drains[busy], 0.1))
    few, many = busy & (drains <= _SAME_DRAINS * least), busy & (drains >= MORE_DRAINS * least)
    if min(few.sum(), many.sum()) < _LEAST_SECONDS:
        return None
    where = np.flatnonzero(many)
    between = (np.arange(len(many)) >= where[0]) & (np.arange(len(many)) <= where[-1])
    if many.sum() < _SUSTAINED * between.sum():
        return None
    if not is_step(epochs).any():
        return few, between, float(drains[many].mean()) / least
    times = _times(epochs, few[seconds], many[seconds])
    return (few, between, times) if times >= MORE_DRAINS else None


def _times(steps: Array, few: Array, many: Array) -> float:
    """How many times as many syncs a step has; 0 where most have none: then the steps themselves were cut otherwise."""
    now, before = (_syncs_a_step(steps[chosen]) for chosen in (many, few))
    return min(now / max(before, 1 / _MOST_TIMES), _MOST_TIMES) if now >= _SYNCS_A_STEP else 0.0


def _syncs_a_step(steps: Array) -> float:
    return float(steps["syncs"].sum()) / max(len(steps) + int(steps["joined"].sum()), 1)


def _pace_ns(epochs: Array) -> float:
    return float((epochs["b_ns"] - epochs["a_ns"]).sum()) / max(float(epochs["launches"].sum()), 1.0)


def is_same_work(now: Array, usual: Array) -> bool:
    """Whether the launches of both move as many bytes each; the epochs are whole ones."""
    work = [float(one["bytes"].sum()) / max(float(one["launches"].sum()), 1.0) for one in (now, usual)]
    return max(work) <= _SAME_WORK * max(min(work), 1.0)


def lost_buckets(now: Array, usual: Array, launches: int) -> dict[Bucket, int]:
    """What each part grew by per launch, for so many launches; E and P by its clocks. The epochs are whole ones."""
    scales = [launches / max(float(one["launches"].sum()), 1.0) for one in (now, usual)]
    lost: dict[Bucket, float] = defaultdict(float)

    def grown(name: str) -> Any:
        sums = [np.maximum(one[name], 0).sum(axis=0).astype(np.float64) for one in (now, usual)]
        return scales[0] * sums[0] - scales[1] * sums[1]

    if is_step(now).any():
        return _lost_by_steps(grown("empty_clock_ns") + grown("enqueue_clock_ns"), _grown_ns(now, usual, scales))
    for part, name, length in ((Part.EMPTY, "empty", "e_ns"), (Part.LATE, "drain", "p_ns")):
        clocks = grown(f"{name}_clock_ns")
        is_late = part is Part.LATE
        spread(lost, part, float(grown(length)), kept_waiting(clocks) if is_late else clocks, is_partial=is_late)
    busy = float(grown("x_ns"))
    host = min(max(busy, 0.0), scales[0] * float((now["s_ns"] - now["f_ns"]).sum()))
    lost[Bucket(Part.ENQUEUE, "run")] += host
    lost[Bucket(Part.DEVICE, DEVICE)] += busy - host
    return {bucket: round(ns) for bucket, ns in lost.items() if abs(ns) >= 1}


def _grown_ns(now: Array, usual: Array, scales: list[float]) -> float:
    lengths = [float((one["b_ns"] - one["a_ns"]).sum()) for one in (now, usual)]
    return scales[0] * lengths[0] - scales[1] * lengths[1]


def _lost_by_steps(host_clocks: Array, grown_ns: float) -> dict[Bucket, int]:
    """The same of steps by repetition: the host's part by its clocks, the rest is what they were blocked longer."""
    lost: dict[Bucket, float] = defaultdict(float)
    host_ns = min(max(float(host_clocks.sum()), 0.0), max(grown_ns, 0.0))
    spread(lost, Part.EMPTY, host_ns, host_clocks, is_partial=True)
    lost[Bucket(Part.DEVICE, DEVICE)] += grown_ns - host_ns
    return {bucket: round(ns) for bucket, ns in lost.items() if abs(ns) >= 1}
