"""Time ranges in which a loop syncs more often than before: the same launches, cut into more sync intervals.

Such sync intervals have other step types, without a healthier regime to compare with. So their time per launch is
compared with the time before, second by second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingero.diagnose.findings import Bucket, Part
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION, kept_waiting, spread
from ingero.diagnose.lost_time.time_ranges import MIN_LOST_NS, MIN_LOST_RATIO
from ingero.diagnose.steps.pacing import is_step
from ingero.diagnose.steps.untraced_launches import has_untraced_launches
from ingero.store.records import Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

MORE_SYNCS = 1.5  # syncs per launch in the time range, at least this many times those of the baseline
_SAME_SYNCS = 1.15  # syncs per launch in the baseline, at most this many times the fewest
_SAME_WORK = 1.25  # bytes per launch differ by at most this factor; otherwise the loop does other work
_MIN_KERNEL_SHARE = 0.02  # of the launches; rarer kernels are too few in a second
_MIN_SECONDS = 2  # of the time range, and of the baseline
_MIN_LAUNCHES = 0.25  # of the median second's; seconds with fewer are starts, ends and pauses
_MIN_SYNCS_PER_STEP = 0.5  # in the time range
_MAX_SYNC_RATIO = 100.0  # that is said: the true ratio is larger for a loop that hardly ever waited
_SUSTAINED = 0.8  # of the seconds of the time range have more syncs


@dataclass(frozen=True, slots=True)
class Resync:
    """A time range with more syncs per launch. inside, baseline: masks of its sync intervals, and of its baseline's."""

    inside: Array
    baseline: Array
    window: Window
    syncs: float  # per launch, as a ratio of the baseline's
    pace_ns: float  # per launch in the baseline
    lost_ns: int  # time of all its sync intervals beyond the baseline's pace

    @property
    def is_enough(self) -> bool:
        """Whether its lost time is enough to be reported."""
        return self.lost_ns >= MIN_LOST_NS

    def is_onset(self, until_ns: int, *, since_ns: int) -> bool:
        """Whether it began after `since_ns`, lasted to within a second of `until_ns`, and has lost little yet."""
        is_new = self.window.begin_ns >= since_ns and until_ns - self.window.end_ns < SECOND_NS
        return is_new and not self.is_enough

    def expected_ns(self, sync_intervals: Array) -> Array:
        """The length of each sync interval at the baseline's pace."""
        expected: Array = sync_intervals["launches"] * self.pace_ns
        return expected


def find_resync(sync_intervals: Array) -> Resync | None:
    """The time range of a stream that loses MIN_LOST_RATIO by more syncs per launch, even if short; else None.

    Only sync intervals whose launches were traced count.
    """
    seen = ~has_untraced_launches(sync_intervals)
    found = _find_resync(sync_intervals[seen])
    if found is None or seen.all():
        return found
    inside, baseline = (np.zeros(len(sync_intervals), bool) for _ in range(2))
    inside[seen], baseline[seen] = found.inside, found.baseline
    return replace(found, inside=inside, baseline=baseline)


def _find_resync(sync_intervals: Array) -> Resync | None:
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
    found = Resync(
        inside=between[seconds],
        baseline=few[seconds],
        window=Window(begin_ns=int(members["prev_sync_end_ns"][0]), end_ns=int(members["sync_end_ns"][-1]) + 1),
        syncs=syncs,
        pace_ns=pace_ns,
        lost_ns=int(wall - pace_ns * float(members["launches"].sum())),
    )
    return found if found.lost_ns >= MIN_LOST_RATIO * wall else None


def _regimes(sync_intervals: Array, seconds: Array) -> tuple[Array, Array, float] | None:
    """Seconds with few syncs per launch, the time range of seconds with many, and the ratio of their syncs per launch.

    None where the seconds do not form two regimes.
    """
    launches = np.bincount(seconds, weights=sync_intervals["launches"])
    # a step by repetition ends even without a sync: its end counts as one sync more
    syncs = np.bincount(seconds, weights=1 + sync_intervals["joined"] + sync_intervals["syncs"]) / np.maximum(
        launches, 1
    )
    busy = launches >= _MIN_LAUNCHES * np.median(launches[launches > 0])
    least = float(np.quantile(syncs[busy], 0.1))
    few, many = busy & (syncs <= _SAME_SYNCS * least), busy & (syncs >= MORE_SYNCS * least)
    if min(few.sum(), many.sum()) < _MIN_SECONDS:
        return None
    where = np.flatnonzero(many)
    between = (np.arange(len(many)) >= where[0]) & (np.arange(len(many)) <= where[-1])
    if many.sum() < _SUSTAINED * between.sum():
        return None
    if not is_step(sync_intervals).any():
        return few, between, float(syncs[many].mean()) / least
    ratio = _sync_ratio(sync_intervals, few[seconds], many[seconds])
    return (few, between, ratio) if ratio >= MORE_SYNCS else None


def _sync_ratio(steps: Array, few: Array, many: Array) -> float:
    """The ratio of syncs per step; 0 where most steps have none, because then the steps themselves are other ones."""
    now, before = (_syncs_per_step(steps[chosen]) for chosen in (many, few))
    return min(now / max(before, 1 / _MAX_SYNC_RATIO), _MAX_SYNC_RATIO) if now >= _MIN_SYNCS_PER_STEP else 0.0


def _syncs_per_step(steps: Array) -> float:
    return float(steps["syncs"].sum()) / max(len(steps) + int(steps["joined"].sum()), 1)


def _pace_ns(sync_intervals: Array) -> float:
    return float((sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]).sum()) / max(
        float(sync_intervals["launches"].sum()), 1.0
    )


def is_same_work_per_launch(now: Array, baseline: Array) -> bool:
    """Whether the launches of both arrays of whole sync intervals move as many bytes each."""
    work = [float(one["bytes"].sum()) / max(float(one["launches"].sum()), 1.0) for one in (now, baseline)]
    return max(work) <= _SAME_WORK * max(min(work), 1.0)


def has_same_shares(now: Mapping[Hashable, int], baseline: Mapping[Hashable, int]) -> bool:
    """Whether each kernel of both has about the same share of the launches.

    An optimizer that steps after more batches is other work. Kernels of one of both only may be what a wait brought.
    """
    shares = [{kernel: count / max(sum(one.values()), 1) for kernel, count in one.items()} for one in (now, baseline)]
    pairs = [(shares[0][kernel], shares[1][kernel]) for kernel in now.keys() & baseline.keys()]
    return all(max(pair) < _MIN_KERNEL_SHARE or max(pair) <= _SAME_WORK * min(pair) for pair in pairs)


def lost_buckets(now: Array, baseline: Array, launches: int) -> dict[Bucket, int]:
    """The growth per launch of each part times `launches`; GPU idle and return delay by thread state.

    now, baseline: whole sync intervals.
    """
    scales = [launches / max(float(one["launches"].sum()), 1.0) for one in (now, baseline)]
    lost: dict[Bucket, float] = defaultdict(float)

    def grown(name: str) -> Any:
        sums = [np.maximum(one[name], 0).sum(axis=0).astype(np.float64) for one in (now, baseline)]
        return scales[0] * sums[0] - scales[1] * sums[1]

    if is_step(now).any():
        return _lost_by_steps(grown("idle_state_ns") + grown("launch_state_ns"), _grown_ns(now, baseline, scales))
    for part, name, length in ((Part.IDLE, "idle", "idle_ns"), (Part.RETURN_DELAY, "sync", "return_delay_ns")):
        state_ns = grown(f"{name}_state_ns")
        is_late = part is Part.RETURN_DELAY
        spread(lost, part, float(grown(length)), kept_waiting(state_ns) if is_late else state_ns, is_partial=is_late)
    busy = float(grown("busy_ns"))
    host = min(max(busy, 0.0), scales[0] * float((now["sync_start_ns"] - now["first_launch_ns"]).sum()))
    lost[Bucket(Part.LAUNCH, "run")] += host
    lost[Bucket(Part.GPU, GPU_EXECUTION)] += busy - host
    return {bucket: round(ns) for bucket, ns in lost.items() if abs(ns) >= 1}


def _grown_ns(now: Array, baseline: Array, scales: list[float]) -> float:
    lengths = [float((one["sync_end_ns"] - one["prev_sync_end_ns"]).sum()) for one in (now, baseline)]
    return scales[0] * lengths[0] - scales[1] * lengths[1]


def _lost_by_steps(host_state_ns: Array, grown_ns: float) -> dict[Bucket, int]:
    """Lost buckets of steps by repetition: the host's part by thread state, the rest as longer waits for the GPU."""
    lost: dict[Bucket, float] = defaultdict(float)
    host_ns = min(max(float(host_state_ns.sum()), 0.0), max(grown_ns, 0.0))
    spread(lost, Part.IDLE, host_ns, host_state_ns, is_partial=True)
    lost[Bucket(Part.GPU, GPU_EXECUTION)] += grown_ns - host_ns
    return {bucket: round(ns) for bucket, ns in lost.items() if abs(ns) >= 1}
