"""The best sustained regime of a lane: what an epoch of each class takes when nothing is wrong.

Epochs of one class are cut into chunks; the chunks as fast as the fastest are pooled and make the reference. Pooling
keeps the minimum over many chunks from being a lucky one. A chunk slowed by an incident never joins, so that the
reference is frozen while one goes on. The newest chunk may hold the end of something slow: the mean of both is no
epoch's, so that it is cut where its epochs became faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ingero.diagnose.loss import MIN_EPOCHS, Reference
from ingero.events import CLOCKS
from ingero.store.records import Window
from ingero.store.spans import Spans, joined

Array = np.ndarray[Any, np.dtype[Any]]

CHUNK_NS = 1_500_000_000
_LAST_NS = CHUNK_NS // 2  # of the newest, which is not whole yet: a few epochs of a loop that varies are fast by chance
REFERENCE_NS = 30_000_000_000  # of healthy time whose clocks and culprits are read
SAME_REGIME = 0.01  # means this close are one regime: healthy seconds of one loop differ by 0.1 to 0.7 %
_FAR = 0.03  # that a mean is off: as much as the least loss that is told
_NO_CHANCE = 2.0  # a sum of differences that rises so far, in sigmas of the whole sum: 0.03 % of equal epochs do
_SIGMA_OF_MAD = 1.48
_SIGMA_OF_MEAN = 1.2533  # the same of a mean difference
_MOST_POOLED = 256  # chunks of a reference; medians of so many do not move any more
_SPARSE = 3  # a chunk that spans more than this times its own epochs is read epoch by epoch,
_MOST_APART = 64  # this many of them
_NOT_RECORDED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """One class at its best: the reference, the clocks of each part per epoch (ns, order of CLOCKS), and when.

    The clocks are 0 until `with_clocks` has read them. healthy: begins and ends of the stretches that the reference
    comes from. windows: the longest of these, REFERENCE_NS at most: more would be read without telling more.
    spread_ratio: how much healthy epochs differ, one sigma. chunk_noise_ratio: the same of the means of healthy chunks.
    """

    reference: Reference
    empty_clock_ns: Array = field(default_factory=lambda: np.zeros(len(CLOCKS)))
    enqueue_clock_ns: Array = field(default_factory=lambda: np.zeros(len(CLOCKS)))
    drain_clock_ns: Array = field(default_factory=lambda: np.zeros(len(CLOCKS)))
    spread_ratio: float
    chunk_noise_ratio: float
    chunk_epochs: int
    healthy: tuple[Array, Array]
    windows: tuple[Window, ...]

    def noise_of(self, epochs: int) -> float:
        """One sigma of the mean length of so many epochs, as a ratio."""
        alone = self.spread_ratio / max(epochs, 1) ** 0.5
        return float(max(alone, self.chunk_noise_ratio * min(1.0, (self.chunk_epochs / max(epochs, 1)) ** 0.5)))


def usual_epochs(epochs: Array) -> dict[int, Usual]:
    """The best regime of each class with enough epochs; `epochs` are of one lane, in order of time."""
    keys = np.ascontiguousarray(epochs["class_key"])
    found: dict[int, Usual] = {}
    for key, count in zip(*np.unique(keys, return_counts=True), strict=True):
        if count >= MIN_EPOCHS:
            found[int(key)] = _usual(epochs if count == len(epochs) else epochs[keys == key])
    return found


def reference_windows(usual: Mapping[int, Usual]) -> tuple[Window, ...]:
    """The stretches of time that the references come from, joined where they touch."""
    return joined(window for one in usual.values() for window in one.windows)


def _usual(members: Array) -> Usual:
    begins, ends = np.ascontiguousarray(members["a_ns"]), np.ascontiguousarray(members["b_ns"])
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
        chunk_epochs=int(np.median(stops[healthy] - starts[healthy])),
        healthy=_runs(begins[starts], ends[stops - 1], healthy),
        windows=tuple(_windows(begins, ends, starts, stops, healthy)),
    )


def _reference(pool: Array) -> Reference:
    """Means, so that the parts add up: nothing but healthy chunks is in the pool."""
    lengths = _lengths(pool)
    median = float(np.median(lengths))
    return Reference(
        epochs=len(pool),
        t_ns=float(lengths.mean()),
        e_ns=float(pool["e_ns"].mean()),
        x_ns=float(pool["x_ns"].mean()),
        p_ns=float(pool["p_ns"].mean()),
        enqueue_ns=float((pool["s_ns"] - pool["f_ns"]).mean()),
        noise_ratio=float(np.median(np.abs(lengths - median))) / max(median, 1),
    )


def with_clocks(usual: Mapping[int, Usual], read: Callable[[Window], Array]) -> dict[int, Usual]:
    """The same with the clocks of their epochs. read: the whole epochs that ended in a window."""
    if not usual:
        return {}
    whole: Array = np.concatenate([read(window) for window in reference_windows(usual)])
    found = {}
    for key, one in usual.items():
        mine: Array = whole[whole["class_key"] == key]
        pool = mine[Spans(one.windows).have_inside(mine["b_ns"])]
        if len(pool):
            empty, enqueue, drain = (_clocks(pool, part) for part in ("empty", "enqueue", "drain"))
            one = replace(one, empty_clock_ns=empty, enqueue_clock_ns=enqueue, drain_clock_ns=drain)  # noqa: PLW2901
        found[key] = one
    return found


def at_best(epochs: Array, usual: Mapping[int, Usual]) -> Array:
    """Which of these epochs the references come from, or have a class without one."""
    keys = np.ascontiguousarray(epochs["class_key"])
    chosen: Array = ~np.isin(keys, list(usual))
    for key, one in usual.items():
        begins, ends = one.healthy
        run = np.searchsorted(begins, epochs["a_ns"], side="right") - 1
        chosen |= (keys == key) & (run >= 0) & (epochs["b_ns"] <= ends[run.clip(min=0)])
    return chosen


def _runs(begins: Array, ends: Array, healthy: Array) -> tuple[Array, Array]:
    """First begin and last end of each run of healthy chunks."""
    breaks = np.flatnonzero(np.diff(healthy) > 1)
    firsts, lasts = healthy[np.append(0, breaks + 1)], healthy[np.append(breaks, len(healthy) - 1)]
    return begins[firsts], ends[lasts]


def _windows(begins: Array, ends: Array, starts: Array, stops: Array, healthy: Array) -> list[Window]:
    """The longest runs of healthy chunks, REFERENCE_NS in all, in order of time.

    begins, ends: of the epochs. starts, stops: of the chunks, in epochs. Of a chunk whose epochs lie far apart each has
    a window of its own.
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
    """Where each begins, in epochs, and the mean length of its epochs, ns; inf: too few to say anything."""
    lengths = ends - begins
    starts = _chunk_starts(begins, ends)
    means = _means(lengths, starts)
    last = len(starts) - 1
    if last > 0 and means.argmin() == last and (slow := _slow_first(lengths[starts[last] :])):
        starts = np.append(starts, starts[last] + slow)
        means = _means(lengths, starts)
        if len(begins) - starts[-1] < MIN_EPOCHS or ends[-1] - begins[starts[-1]] < _LAST_NS:
            means[-1] = np.inf
    return starts, means


def _chunk_starts(begins: Array, ends: Array) -> Array:
    """Where pieces of MIN_EPOCHS epochs and CHUNK_NS at least begin, the last of _LAST_NS; what is left joins that."""
    starts = [0]
    while True:
        begin = starts[-1]
        late_enough = int(np.searchsorted(ends, begins[begin] + CHUNK_NS))
        after = max(begin + MIN_EPOCHS, late_enough + 1)
        if after + MIN_EPOCHS > len(begins) or ends[-1] - begins[after] < _LAST_NS:
            break
        starts.append(after)
    return np.array(starts, np.int64)


def _lengths(epochs: Array) -> Array:
    lengths: Array = epochs["b_ns"] - epochs["a_ns"]
    return lengths


def _spread(lengths: Array) -> float:
    """How much they differ, one sigma, as a ratio of their median; a stall now and then hardly counts.

    Not by the median of the differences: of epochs that are short or long by chance it would see one kind only.
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
    clocks = pool[f"{part}_clock_ns"]
    known = clocks[clocks[:, 0] != _NOT_RECORDED]
    mean: Array = known.mean(axis=0) if len(known) else np.zeros(clocks.shape[1])
    return mean
