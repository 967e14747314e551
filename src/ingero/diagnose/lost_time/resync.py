"""Stretches in which a loop waits for the GPU more often than it did: the same launches, cut into more sync intervals.

Such sync intervals are of other classes, which have no healthier regime to be compared with. So their time is compared
per launch with the time range before, second by second.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingero.diagnose.findings import Bucket, Part
from ingero.diagnose.lost_time.buckets import DEVICE, kept_waiting, spread
from ingero.diagnose.lost_time.time_ranges import MIN_LOST_NS, MIN_RATIO
from ingero.diagnose.steps.pacing import is_step
from ingero.diagnose.steps.untraced_launches import is_unseen
from ingero.store.records import Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

MORE_SYNCS = 1.5  # per launch, at least so many times as many
_SAME_SYNCS = 1.15
_SAME_WORK = 1.25  # bytes per launch differ by at most so much: else it does other work
_LEAST_SECONDS = 2  # of each
_BUSY = 0.25  # of the median second's launches; others are starts, ends and pauses
_SYNCS_A_STEP = 0.5
_MOST_TIMES = 100.0  # as often: more is said of a loop that hardly ever waited
_SUSTAINED = 0.8  # of the seconds of the time range


@dataclass(frozen=True, slots=True)
class Resynced:
    """A time range with more syncs per launch: which sync intervals are in it, and which are its reference."""

    inside: Array
    usual: Array
    window: Window
    syncs: float  # per launch, against the reference
    pace_ns: float  # per launch in the reference
    lost_ns: int  # what its sync intervals took beyond that, all together

    @property
    def is_enough(self) -> bool:
        """Whether that is as much as is told."""
        return self.lost_ns >= MIN_LOST_NS

    def is_beginning(self, until_ns: int, *, since_ns: int) -> bool:
        """Whether it has begun since then and was still there a moment before `until_ns`, with little lost yet."""
        is_there = self.window.begin_ns >= since_ns and until_ns - self.window.end_ns < SECOND_NS
        return is_there and not self.is_enough

    def wanted_ns(self, sync_intervals: Array) -> Array:
        """How long each sync interval had lasted at the reference's pace."""
        wanted: Array = sync_intervals["launches"] * self.pace_ns
        return wanted


def resynced(sync_intervals: Array) -> Resynced | None:
    """The time range of a stream that loses its share of time with more syncs per launch, however little yet, or None.

    Of those whose launches are known.
    """
    seen = ~is_unseen(sync_intervals)
    found = _resynced(sync_intervals[seen])
    if found is None or seen.all():
        return found
    inside, usual = (np.zeros(len(sync_intervals), bool) for _ in range(2))
    inside[seen], usual[seen] = found.inside, found.usual
    return replace(found, inside=inside, usual=usual)


def _resynced(sync_intervals: Array) -> Resynced | None:
    if not len(sync_intervals) or sync_intervals["launches"].sum() <= 0:
        return None
    seconds = (sync_intervals["sync_end_ns"] - int(sync_intervals["sync_end_ns"][0])) // SECOND_NS
    regimes = _regimes(sync_intervals, seconds)
    if regimes is None:
        return None
    few, between, syncs = regimes
    members = sync_intervals[between[seconds]]
    wall = int((members["sync_end_ns"] - members["prev_sync_end_ns"]).sum())
    pace_ns = _pace_ns(sync_intervals[few[seconds]])
    found = Resynced(
        inside=between[seconds],
        usual=few[seconds],
        window=Window(begin_ns=int(members["prev_sync_end_ns"][0]), end_ns=int(members["sync_end_ns"][-1]) + 1),
        syncs=syncs,
        pace_ns=pace_ns,
        lost_ns=int(wall - pace_ns * float(members["launches"].sum())),
    )
    return found if found.lost_ns >= MIN_RATIO * wall else None


def _regimes(sync_intervals: Array, seconds: Array) -> tuple[Array, Array, float] | None:
    """Seconds with few syncs per launch, the time range of those with many, and how many times as many they have.

    None where these are not two regimes.
    """
    launches = np.bincount(seconds, weights=sync_intervals["launches"])
    # a step by repetition that is never waited for ends all the same: with its waits it is one more
    syncs = np.bincount(seconds, weights=1 + sync_intervals["joined"] + sync_intervals["syncs"]) / np.maximum(
        launches, 1
    )
    busy = launches >= _BUSY * np.median(launches[launches > 0])
    least = float(np.quantile(syncs[busy], 0.1))
    few, many = busy & (syncs <= _SAME_SYNCS * least), busy & (syncs >= MORE_SYNCS * least)
    if min(few.sum(), many.sum()) < _LEAST_SECONDS:
        return None
    where = np.flatnonzero(many)
    between = (np.arange(len(many)) >= where[0]) & (np.arange(len(many)) <= where[-1])
    if many.sum() < _SUSTAINED * between.sum():
        return None
    if not is_step(sync_intervals).any():
        return few, between, float(syncs[many].mean()) / least
    times = _times(sync_intervals, few[seconds], many[seconds])
    return (few, between, times) if times >= MORE_SYNCS else None


def _times(steps: Array, few: Array, many: Array) -> float:
    """How many times as many syncs a step has; 0 where most have none: then the steps themselves were cut otherwise."""
    now, before = (_syncs_a_step(steps[chosen]) for chosen in (many, few))
    return min(now / max(before, 1 / _MOST_TIMES), _MOST_TIMES) if now >= _SYNCS_A_STEP else 0.0


def _syncs_a_step(steps: Array) -> float:
    return float(steps["syncs"].sum()) / max(len(steps) + int(steps["joined"].sum()), 1)


def _pace_ns(sync_intervals: Array) -> float:
    return float((sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]).sum()) / max(
        float(sync_intervals["launches"].sum()), 1.0
    )


def is_same_work(now: Array, usual: Array) -> bool:
    """Whether the launches of both move as many bytes each; the sync intervals are whole ones."""
    work = [float(one["bytes"].sum()) / max(float(one["launches"].sum()), 1.0) for one in (now, usual)]
    return max(work) <= _SAME_WORK * max(min(work), 1.0)


def lost_buckets(now: Array, usual: Array, launches: int) -> dict[Bucket, int]:
    """What each part grew by per launch, for so many launches; GPU idle and return delay by thread state.

    Sync intervals are whole ones.
    """
    scales = [launches / max(float(one["launches"].sum()), 1.0) for one in (now, usual)]
    lost: dict[Bucket, float] = defaultdict(float)

    def grown(name: str) -> Any:
        sums = [np.maximum(one[name], 0).sum(axis=0).astype(np.float64) for one in (now, usual)]
        return scales[0] * sums[0] - scales[1] * sums[1]

    if is_step(now).any():
        return _lost_by_steps(grown("idle_state_ns") + grown("launch_state_ns"), _grown_ns(now, usual, scales))
    for part, name, length in ((Part.IDLE, "idle", "idle_ns"), (Part.RETURN_DELAY, "sync", "return_delay_ns")):
        clocks = grown(f"{name}_state_ns")
        is_late = part is Part.RETURN_DELAY
        spread(lost, part, float(grown(length)), kept_waiting(clocks) if is_late else clocks, is_partial=is_late)
    busy = float(grown("busy_ns"))
    host = min(max(busy, 0.0), scales[0] * float((now["sync_start_ns"] - now["first_launch_ns"]).sum()))
    lost[Bucket(Part.LAUNCH, "run")] += host
    lost[Bucket(Part.GPU, DEVICE)] += busy - host
    return {bucket: round(ns) for bucket, ns in lost.items() if abs(ns) >= 1}


def _grown_ns(now: Array, usual: Array, scales: list[float]) -> float:
    lengths = [float((one["sync_end_ns"] - one["prev_sync_end_ns"]).sum()) for one in (now, usual)]
    return scales[0] * lengths[0] - scales[1] * lengths[1]


def _lost_by_steps(host_clocks: Array, grown_ns: float) -> dict[Bucket, int]:
    """The same of steps by repetition: the host's part by its clocks, the rest is what they were blocked longer."""
    lost: dict[Bucket, float] = defaultdict(float)
    host_ns = min(max(float(host_clocks.sum()), 0.0), max(grown_ns, 0.0))
    spread(lost, Part.IDLE, host_ns, host_clocks, is_partial=True)
    lost[Bucket(Part.GPU, DEVICE)] += grown_ns - host_ns
    return {bucket: round(ns) for bucket, ns in lost.items() if abs(ns) >= 1}
