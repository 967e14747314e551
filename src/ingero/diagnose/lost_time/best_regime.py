"""The best sustained regime of a stream: the length of a sync interval of each step type when nothing is wrong.

Sync intervals of one step type are cut into chunks, and the chunks as fast as the fastest are pooled into the
reference, so that the minimum over many chunks is no lucky one. A chunk slowed by an incident never joins, so that the
reference is frozen during an incident. The newest chunk may begin with the end of something slow: the mean of both
would be the length of neither, so that the chunk is cut where its sync intervals became faster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ingero.diagnose.lost_time.end_to_end import MIN_SYNC_INTERVALS, Reference
from ingero.events import STATES
from ingero.store.arrays.spans import Spans, joined
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK_NS = 1_500_000_000  # docs/adr/0027
# Of the newest chunk, which is still incomplete: in a loop that varies, a few sync intervals are fast by chance.
_MIN_LAST_NS = CHUNK_NS // 2
REFERENCE_NS = 30_000_000_000  # healthy time whose thread states and culprits are read
SAME_REGIME = 0.01  # means this close are one regime: healthy seconds of one loop differ by 0.1 to 0.7%
_MIN_MEAN_SHIFT = 0.03  # of a chunk's mean, before the chunk is cut: as much as the least lost time that is reported
_MIN_RISE = 2.0  # of the sum of differences, in sigmas of that sum: 0.03% of runs of equal sync intervals rise so far
_SIGMA_OF_MAD = 1.48  # one sigma of a normal distribution in median absolute deviations
_SIGMA_OF_MEAN = 1.2533  # one sigma of a normal distribution in mean absolute deviations
_MAX_POOLED = 256  # chunks of a reference; the medians of more hardly change
_SPARSE_RATIO = 3  # a chunk that spans more than this times its own sync intervals is read interval by interval,
_MAX_SPARSE = 64  # at most this many of them
_NOT_RECORDED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassReference:
    """One step type at its best: the mean sync interval, its thread-state times, and when they were measured.

    idle_state_ns, launch_state_ns, sync_state_ns: ns per sync interval in the order of STATES; 0 until
    `with_thread_states` has read them. healthy: begins and ends of the time ranges that the reference comes from.
    windows: the longest of these ranges, at most REFERENCE_NS in all, since reading more would add nothing.
    spread_ratio: one sigma of healthy sync intervals, as a ratio of their median. chunk_noise_ratio: one sigma of the
    means of healthy chunks, as a ratio.
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
        """One sigma of the mean length of this many sync intervals, as a ratio."""
        alone = self.spread_ratio / max(sync_intervals, 1) ** 0.5
        return float(
            max(alone, self.chunk_noise_ratio * min(1.0, (self.chunk_sync_intervals / max(sync_intervals, 1)) ** 0.5))
        )


def class_references(sync_intervals: Array) -> dict[int, ClassReference]:
    """The best regime of each step type with enough sync intervals. sync_intervals: of one stream, in time order."""
    keys = np.ascontiguousarray(sync_intervals["step_type"])
    found: dict[int, ClassReference] = {}
    for key, count in zip(*np.unique(keys, return_counts=True), strict=True):
        if count >= MIN_SYNC_INTERVALS:
            found[int(key)] = _class_reference(
                sync_intervals if count == len(sync_intervals) else sync_intervals[keys == key]
            )
    return found


def reference_windows(references: Mapping[int, ClassReference], keys: Collection[int] = ()) -> tuple[Window, ...]:
    """The time ranges that the references come from, merged where they touch.

    keys: step types to which these ranges are limited, including sync intervals of other types in between; empty: all.
    """
    if not keys or len(keys) == len(references):
        return joined(window for best in references.values() for window in best.windows)
    others = [best for key, best in references.items() if key not in keys]
    between_ns = 2 * sum(best.reference.t_ns for best in others)  # of a step, with noise
    return joined((window for key in keys for window in references[key].windows), apart_ns=int(between_ns))


def _class_reference(members: Array) -> ClassReference:
    begins, ends = np.ascontiguousarray(members["prev_sync_end_ns"]), np.ascontiguousarray(members["sync_end_ns"])
    lengths = ends - begins
    starts, means = _chunks(begins, ends)
    stops = np.append(starts[1:], len(members))
    best = int(means.argmin())
    lucky = 2 + (2 * np.log(len(starts))) ** 0.5  # sigmas: so far below the others is the best of many equal chunks
    slack = max(SAME_REGIME, lucky * _noise_of_mean(lengths[starts[best] : stops[best]]))
    healthy = np.flatnonzero(means <= means.min() * (1 + slack))
    pooled = healthy[np.unique(np.linspace(0, len(healthy) - 1, min(len(healthy), _MAX_POOLED)).astype(np.int64))]
    pool = np.concatenate([members[starts[at] : stops[at]] for at in pooled])
    reference = _reference(pool)
    ratios = means[healthy] / max(reference.t_ns, 1) - 1
    return ClassReference(
        reference=reference,
        spread_ratio=_spread(_lengths(pool)),
        chunk_noise_ratio=float(np.median(np.abs(ratios - np.median(ratios)))) * _SIGMA_OF_MAD,
        chunk_sync_intervals=int(np.median(stops[healthy] - starts[healthy])),
        healthy=_runs(begins[starts], ends[stops - 1], healthy),
        windows=tuple(_windows(begins, ends, starts, stops, healthy)),
    )


def _reference(pool: Array) -> Reference:
    """The reference of pooled sync intervals, by means, so that the parts add up: the pool has only healthy chunks."""
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


def with_thread_states(references: Mapping[int, ClassReference], whole: Array) -> dict[int, ClassReference]:
    """These references with their thread-state times. whole: the sync intervals that ended in their windows."""
    found = dict(references)
    for key, best in references.items():
        mine: Array = whole[whole["step_type"] == key]
        pool = mine[Spans(best.windows).have_inside(mine["sync_end_ns"])]
        if len(pool):
            idle, launch, sync = (_mean_state_ns(pool, part) for part in ("idle", "launch", "sync"))
            found[key] = replace(best, idle_state_ns=idle, launch_state_ns=launch, sync_state_ns=sync)
    return found


def at_best(sync_intervals: Array, references: Mapping[int, ClassReference]) -> Array:
    """A mask of the sync intervals that the references come from, or whose step type has no reference."""
    keys = np.ascontiguousarray(sync_intervals["step_type"])
    chosen: Array = ~np.isin(keys, list(references))
    for key, best in references.items():
        begins, ends = best.healthy
        run = np.searchsorted(begins, sync_intervals["prev_sync_end_ns"], side="right") - 1
        chosen |= (keys == key) & (run >= 0) & (sync_intervals["sync_end_ns"] <= ends[run.clip(min=0)])
    return chosen


def _runs(begins: Array, ends: Array, healthy: Array) -> tuple[Array, Array]:
    """Begins and ends of the runs of healthy chunks."""
    breaks = np.flatnonzero(np.diff(healthy) > 1)
    firsts, lasts = healthy[np.append(0, breaks + 1)], healthy[np.append(breaks, len(healthy) - 1)]
    return begins[firsts], ends[lasts]


def _windows(begins: Array, ends: Array, starts: Array, stops: Array, healthy: Array) -> list[Window]:
    """The longest runs of healthy chunks, REFERENCE_NS in all, in order of time.

    begins, ends: of the sync intervals. starts, stops: of the chunks, as indexes of sync intervals. Where the sync
    intervals of a chunk lie far apart, each has a window of its own.
    """
    runs = np.split(healthy, np.flatnonzero(np.diff(healthy) > 1) + 1)
    chosen: list[Window] = []
    left_ns = REFERENCE_NS
    for at in (at for run in sorted(runs, key=len, reverse=True) for at in run.tolist()):
        if left_ns <= 0:
            break
        first, last = int(starts[at]), int(stops[at])
        covered_ns = int((ends[first:last] - begins[first:last]).sum())
        left_ns -= covered_ns
        if ends[last - 1] - begins[first] <= _SPARSE_RATIO * covered_ns:
            chosen.append(Window(begin_ns=int(begins[first]), end_ns=int(ends[last - 1]) + 1))
        else:
            pairs = zip(begins[first:last][:_MAX_SPARSE].tolist(), ends[first:last][:_MAX_SPARSE].tolist(), strict=True)
            chosen += [Window(begin_ns=begin, end_ns=end + 1) for begin, end in pairs]
    return sorted(chosen, key=lambda window: window.begin_ns)


def _chunks(begins: Array, ends: Array) -> tuple[Array, Array]:
    """The index at which each chunk begins, and the mean length of its sync intervals, ns; inf: too few to judge."""
    lengths = ends - begins
    starts = _chunk_starts(begins, ends)
    means = _means(lengths, starts)
    last = len(starts) - 1
    if last > 0 and means.argmin() == last and (slow := _slow_first(lengths[starts[last] :])):
        starts = np.append(starts, starts[last] + slow)
        means = _means(lengths, starts)
        if len(begins) - starts[-1] < MIN_SYNC_INTERVALS or ends[-1] - begins[starts[-1]] < _MIN_LAST_NS:
            means[-1] = np.inf
    return starts, means


def _chunk_starts(begins: Array, ends: Array) -> Array:
    """The indexes at which chunks of at least MIN_SYNC_INTERVALS and CHUNK_NS begin.

    The last one has at least _MIN_LAST_NS, else it belongs to the chunk before.
    """
    starts = [0]
    while True:
        begin = starts[-1]
        late_enough = int(np.searchsorted(ends, begins[begin] + CHUNK_NS))
        after = max(begin + MIN_SYNC_INTERVALS, late_enough + 1)
        if after + MIN_SYNC_INTERVALS > len(begins) or ends[-1] - begins[after] < _MIN_LAST_NS:
            break
        starts.append(after)
    return np.array(starts, np.int64)


def _lengths(sync_intervals: Array) -> Array:
    lengths: Array = sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]
    return lengths


def _spread(lengths: Array) -> float:
    """One sigma of these lengths as a ratio of their median; an occasional stall hardly counts.

    By the mean of the differences: if sync intervals are either short or long, the median would see one kind only.
    """
    median = float(np.median(lengths))
    return float(np.abs(lengths - median).mean()) * _SIGMA_OF_MEAN / max(median, 1)


def _means(lengths: Array, starts: Array) -> Array:
    """The mean length of each chunk's sync intervals; a median would not see one stall in eight."""
    means: Array = np.add.reduceat(lengths, starts) / np.diff(starts, append=len(lengths))
    return means


def _slow_first(lengths: Array) -> int:
    """How many of the first are slower than the rest, by more than chance and enough to mislead the mean; else 0.

    The Kolmogorov-Smirnov test: the running sum of differences from the mean returns to zero, and rises above x times
    its sigma by chance with a probability of exp(-2 x^2). One to three stalls rise less.
    """
    rise = np.cumsum(lengths - lengths.mean())
    at = int(rise.argmax())
    is_far = rise[at] > max(_MIN_RISE * lengths.std() * len(lengths) ** 0.5, _MIN_MEAN_SHIFT * lengths.sum())
    return at + 1 if is_far else 0


def _noise_of_mean(lengths: Array) -> float:
    """The standard error of the mean length, as a ratio."""
    return float(lengths.std() / max(lengths.mean(), 1) / len(lengths) ** 0.5)


def _mean_state_ns(pool: Array, part: str) -> Array:
    state_ns = pool[f"{part}_state_ns"]
    known = state_ns[state_ns[:, 0] != _NOT_RECORDED]
    mean: Array = known.mean(axis=0) if len(known) else np.zeros(state_ns.shape[1])
    return mean
