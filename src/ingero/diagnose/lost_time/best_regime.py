"""The best sustained regime of a stream: what a sync interval of each class takes when nothing is wrong.

Sync intervals of one class are cut into chunks; the chunks as fast as the fastest are pooled and make the reference.
Pooling keeps the minimum over many chunks from being a lucky one. A chunk slowed by an incident never joins, so that
the reference is frozen while one goes on. The newest chunk may hold the end of something slow: the mean of both is no
sync interval's, so that it is cut where its sync intervals became faster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ingero.diagnose.lost_time.end_to_end import MIN_SYNC_INTERVALS, Reference
from ingero.events import STATES
from ingero.store.arrays.spans import Spans, joined
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK_NS = 1_500_000_000
_LAST_NS = (
    CHUNK_NS // 2
)  # of the newest, which is not whole yet: a few sync intervals of a loop that varies are fast by chance
REFERENCE_NS = 30_000_000_000  # of healthy time whose clocks and culprits are read
SAME_REGIME = 0.01  # means this close are one regime: healthy seconds of one loop differ by 0.1 to 0.7%
_FAR = 0.03  # that a mean is off: as much as the least lost time that is told
_NO_CHANCE = 2.0  # a sum of differences that rises so far, in sigmas of the whole sum: 0.03% of equal sync intervals do
_SIGMA_OF_MAD = 1.48
_SIGMA_OF_MEAN = 1.2533  # the same of a mean difference
_MOST_POOLED = 256  # chunks of a reference; medians of so many do not move any more
_SPARSE = 3  # a chunk that spans more than this times its own sync intervals is read sync interval by sync interval,
_MOST_APART = 64  # this many of them
_NOT_RECORDED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """One class at its best: the reference, the clocks of each part per sync interval (ns, order of STATES), and when.

    The clocks are 0 until `with_clocks` has read them. healthy: begins and ends of the time ranges that the reference
    comes from. windows: the longest of these, REFERENCE_NS at most: more would be read without telling more.
    spread_ratio: how much healthy sync intervals differ, one sigma. chunk_noise_ratio: the same of the means of healthy
    chunks.
    """

    reference: Reference
    idle_state_ns: Array = field(default_factory=lambda: np.zeros(len(STATES)))
    launch_state_ns: Array = field(default_factory=lambda: np.zeros(len(STATES)))
    sync_state_ns: Array = field(default_factory=lambda: np.zeros(len(STATES)))
    spread_ratio: float
    chunk_noise_ratio: float
    chunk_sync_intervals: int
    healthy: tuple[Array, Array]
    windows: tuple[Window, ...]

    def noise_of(self, sync_intervals: int) -> float:
        """One sigma of the mean length of so many sync intervals, as a ratio."""
        alone = self.spread_ratio / max(sync_intervals, 1) ** 0.5
        return float(
            max(alone, self.chunk_noise_ratio * min(1.0, (self.chunk_sync_intervals / max(sync_intervals, 1)) ** 0.5))
        )


def usual_sync_intervals(sync_intervals: Array) -> dict[int, Usual]:
    """The best regime of each class with enough sync intervals; `sync_intervals` are of one stream, in time order."""
    keys = np.ascontiguousarray(sync_intervals["step_type"])
    found: dict[int, Usual] = {}
    for key, count in zip(*np.unique(keys, return_counts=True), strict=True):
        if count >= MIN_SYNC_INTERVALS:
            found[int(key)] = _usual(sync_intervals if count == len(sync_intervals) else sync_intervals[keys == key])
    return found


def reference_windows(usual: Mapping[int, Usual], keys: Collection[int] = ()) -> tuple[Window, ...]:
    """The time ranges that the references come from, joined where they touch.

    keys: only those of these classes, with the sync intervals of other classes between them; none: of all classes.
    """
    if not keys or len(keys) == len(usual):
        return joined(window for one in usual.values() for window in one.windows)
    between_ns = 2 * sum(one.reference.t_ns for key, one in usual.items() if key not in keys)  # of a step, with noise
    return joined((window for key in keys for window in usual[key].windows), apart_ns=int(between_ns))


def _usual(members: Array) -> Usual:
    begins, ends = np.ascontiguousarray(members["prev_sync_end_ns"]), np.ascontiguousarray(members["sync_end_ns"])
    lengths = ends - begins
    starts, means = _chunks(begins, ends)
    stops = np.append(starts[1:], len(members))
    best = int(means.argmin())
    lucky = 2 + (2 * np.log(len(starts))) ** 0.5  # sigmas: so far below the others is the best of many equal chunks
    slack = max(SAME_REGIME, lucky * _noise_of_mean(lengths[starts[best] : stops[best]]))
    healthy = np.flatnonzero(means <= means.min() * (1 + slack))
    pooled = healthy[np.unique(np.linspace(0, len(healthy) - 1, min(len(healthy), _MOST_POOLED)).astype(np.int64))]
    pool = np.concatenate([members[starts[at] : stops[at]] for at in pooled])
    usual = _reference(pool)
    ratios = means[healthy] / max(usual.t_ns, 1) - 1
    return Usual(
        reference=usual,
        spread_ratio=_spread(_lengths(pool)),
        chunk_noise_ratio=float(np.median(np.abs(ratios - np.median(ratios)))) * _SIGMA_OF_MAD,
        chunk_sync_intervals=int(np.median(stops[healthy] - starts[healthy])),
        healthy=_runs(begins[starts], ends[stops - 1], healthy),
        windows=tuple(_windows(begins, ends, starts, stops, healthy)),
    )


def _reference(pool: Array) -> Reference:
    """Means, so that the parts add up: nothing but healthy chunks is in the pool."""
    lengths = _lengths(pool)
    median = float(np.median(lengths))
    return Reference(
        sync_intervals=len(pool),
        t_ns=float(lengths.mean()),
        idle_ns=float(pool["idle_ns"].mean()),
        busy_ns=float(pool["busy_ns"].mean()),
        return_delay_ns=float(pool["return_delay_ns"].mean()),
        launch_ns=float((pool["sync_start_ns"] - pool["first_launch_ns"]).mean()),
        noise_ratio=float(np.median(np.abs(lengths - median))) / max(median, 1),
    )


def with_clocks(usual: Mapping[int, Usual], read: Callable[[Window], Array]) -> dict[int, Usual]:
    """The same with the clocks of their sync intervals. read: the whole sync intervals that ended in a window."""
    if not usual:
        return {}
    whole: Array = np.concatenate([read(window) for window in reference_windows(usual)])
    found = {}
    for key, one in usual.items():
        mine: Array = whole[whole["step_type"] == key]
        pool = mine[Spans(one.windows).have_inside(mine["sync_end_ns"])]
        if len(pool):
            empty, enqueue, sync = (_clocks(pool, part) for part in ("idle", "launch", "sync"))
            one = replace(one, idle_state_ns=empty, launch_state_ns=enqueue, sync_state_ns=sync)  # noqa: PLW2901
        found[key] = one
    return found


def at_best(sync_intervals: Array, usual: Mapping[int, Usual]) -> Array:
    """Which of these sync intervals the references come from, or have a class without one."""
    keys = np.ascontiguousarray(sync_intervals["step_type"])
    chosen: Array = ~np.isin(keys, list(usual))
    for key, one in usual.items():
        begins, ends = one.healthy
        run = np.searchsorted(begins, sync_intervals["prev_sync_end_ns"], side="right") - 1
        chosen |= (keys == key) & (run >= 0) & (sync_intervals["sync_end_ns"] <= ends[run.clip(min=0)])
    return chosen


def _runs(begins: Array, ends: Array, healthy: Array) -> tuple[Array, Array]:
    """First begin and last end of each run of healthy chunks."""
    breaks = np.flatnonzero(np.diff(healthy) > 1)
    firsts, lasts = healthy[np.append(0, breaks + 1)], healthy[np.append(breaks, len(healthy) - 1)]
    return begins[firsts], ends[lasts]


def _windows(begins: Array, ends: Array, starts: Array, stops: Array, healthy: Array) -> list[Window]:
    """The longest runs of healthy chunks, REFERENCE_NS in all, in order of time.

    begins, ends: of the sync intervals. starts, stops: of the chunks, in sync intervals. Of a chunk whose sync
    intervals lie far apart each has a window of its own.
    """
    runs = np.split(healthy, np.flatnonzero(np.diff(healthy) > 1) + 1)
    chosen: list[Window] = []
    left_ns = REFERENCE_NS
    for at in (at for run in sorted(runs, key=len, reverse=True) for at in run.tolist()):
        if left_ns <= 0:
            break
        first, last = int(starts[at]), int(stops[at])
        spent = int((ends[first:last] - begins[first:last]).sum())
        left_ns -= spent
        if ends[last - 1] - begins[first] <= _SPARSE * spent:
            chosen.append(Window(begin_ns=int(begins[first]), end_ns=int(ends[last - 1]) + 1))
        else:
            pairs = zip(begins[first:last][:_MOST_APART].tolist(), ends[first:last][:_MOST_APART].tolist(), strict=True)
            chosen += [Window(begin_ns=begin, end_ns=end + 1) for begin, end in pairs]
    return sorted(chosen, key=lambda one: one.begin_ns)


def _chunks(begins: Array, ends: Array) -> tuple[Array, Array]:
    """Where each begins, in sync intervals, and their mean length, ns; inf: too few to say anything."""
    lengths = ends - begins
    starts = _chunk_starts(begins, ends)
    means = _means(lengths, starts)
    last = len(starts) - 1
    if last > 0 and means.argmin() == last and (slow := _slow_first(lengths[starts[last] :])):
        starts = np.append(starts, starts[last] + slow)
        means = _means(lengths, starts)
        if len(begins) - starts[-1] < MIN_SYNC_INTERVALS or ends[-1] - begins[starts[-1]] < _LAST_NS:
            means[-1] = np.inf
    return starts, means


def _chunk_starts(begins: Array, ends: Array) -> Array:
    """Where pieces of at least MIN_SYNC_INTERVALS and CHUNK_NS begin, the last of _LAST_NS; what is left joins that."""
    starts = [0]
    while True:
        begin = starts[-1]
        late_enough = int(np.searchsorted(ends, begins[begin] + CHUNK_NS))
        after = max(begin + MIN_SYNC_INTERVALS, late_enough + 1)
        if after + MIN_SYNC_INTERVALS > len(begins) or ends[-1] - begins[after] < _LAST_NS:
            break
        starts.append(after)
    return np.array(starts, np.int64)


def _lengths(sync_intervals: Array) -> Array:
    lengths: Array = sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]
    return lengths


def _spread(lengths: Array) -> float:
    """How much they differ, one sigma, as a ratio of their median; a stall now and then hardly counts.

    Not by the median of the differences: of sync intervals that are short or long by chance it would see one kind only.
    """
    median = float(np.median(lengths))
    return float(np.abs(lengths - median).mean()) * _SIGMA_OF_MEAN / max(median, 1)


def _means(lengths: Array, starts: Array) -> Array:
    """Of the chunks; a median does not see one stall in eight."""
    means: Array = np.add.reduceat(lengths, starts) / np.diff(starts, append=len(lengths))
    return means


def _slow_first(lengths: Array) -> int:
    """How many of the first are slower than the rest, not by chance and by so much that the mean misleads; 0 for none.

    The test of Kolmogorov and Smirnov: what each differs from the mean, added up, is a walk that returns to zero, and
    rises above x times its sigma by chance with exp(-2 x^2). One stall, or two, or three, rise less.
    """
    rise = np.cumsum(lengths - lengths.mean())
    at = int(rise.argmax())
    is_far = rise[at] > max(_NO_CHANCE * lengths.std() * len(lengths) ** 0.5, _FAR * lengths.sum())
    return at + 1 if is_far else 0


def _noise_of_mean(lengths: Array) -> float:
    """Its standard error, as a ratio."""
    return float(lengths.std() / max(lengths.mean(), 1) / len(lengths) ** 0.5)


def _clocks(pool: Array, part: str) -> Array:
    clocks = pool[f"{part}_state_ns"]
    known = clocks[clocks[:, 0] != _NOT_RECORDED]
    mean: Array = known.mean(axis=0) if len(known) else np.zeros(clocks.shape[1])
    return mean
