"""The time ranges in which a stream lost time, by signed lost time per second that exceeds the noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ingero.diagnose.lost_time.best_regime import ClassReference
from ingero.store.records import Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]
_Bins: TypeAlias = "tuple[int, int]"  # first and last

# Policies of what is reported: docs/adr/0027.
MIN_LOST_RATIO = 0.03  # of wall time; less is not reported
NORMAL_VARIATION_RATIO = 0.05  # of wall time; healthy minutes differ by as much without any process's doing
REPORT_ONLY_JOINED = 1.0  # as `Finding.min_wall_ratio`: explains lost time, but is not reported by itself
NOISE_FACTOR = 3  # sigmas
MIN_SYNC_INTERVALS = 5  # that were slow, or would have fitted into one stall
MIN_SINGLE_STALL_NS = 250_000_000  # a stall this long is reported even if it is the only one
MIN_LOST_NS = 100_000_000  # less than a tenth of a second is not worth an alert
_GAP_BINS = 4  # healthy seconds between two losing ones of one time range
_NEAR_BINS = 1  # healthy seconds between two losing ones that are judged together
_YOUNG_BINS = 3  # seconds: lost time that lasted longer without being reported needs more time, not more haste
_AROUND_BINS = 30  # seconds on either side: a live diagnosis sees no more, and both must give the same answer


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """A time range in which one stream lost time. peak_ratio: lost share of its worst second.

    surrounding_wall_ns: wall time of the losing seconds that it was cut out of, up to half a minute on either side; its
    lost time must be worth reporting against that.
    """

    window: Window
    lost_ns: int
    wall_ns: int
    surrounding_wall_ns: int
    noise_ratio: float
    peak_ratio: float
    sync_intervals: int

    @property
    def is_reportable(self) -> bool:
        """Whether its lost time is worth reporting against the time around it."""
        return self.lost_ns >= MIN_LOST_RATIO * self.surrounding_wall_ns

    @property
    def lost_ratio(self) -> float:
        """Lost share of the wall time, 0 to 1."""
        return self.lost_ns / max(self.wall_ns, 1)


def excess_ns(sync_intervals: Array, references: Mapping[int, ClassReference]) -> Array:
    """The time of each sync interval beyond its step type's reference, ns, signed; 0 without a reference."""
    lengths = (sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]).astype(np.float64)
    excess = np.zeros(len(sync_intervals))
    for key, best in references.items():
        mine = sync_intervals["step_type"] == key
        excess[mine] = lengths[mine] - best.reference.t_ns
    return excess


def losing_ranges(
    sync_intervals: Array, references: Mapping[int, ClassReference], excess: Array, *, apart_ns: int = 0
) -> list[TimeRange]:
    """The time ranges with enough lost time for a finding, in order of time. excess: of `excess_ns`.

    apart_ns: no range reaches across this time by way of a healthy second.
    """
    if not len(sync_intervals) or not references:
        return []
    seconds = _by_second(sync_intervals, references, excess)
    factor = _noise_factor(len(seconds.lost_time))

    def between(first: int, last: int) -> TimeRange | None:
        begin, end = np.searchsorted(seconds.bins, (first, last + 1))
        ratios = seconds.lost_time[first : last + 1] / np.maximum(seconds.wall[first : last + 1], 1)
        return _time_range(sync_intervals[begin:end], excess[begin:end], references, float(ratios.max()), factor)

    is_losing = seconds.is_losing
    runs = _parted(_runs(is_losing, _GAP_BINS), is_losing, (apart_ns - seconds.begin_ns) // SECOND_NS)
    return [time_range for run in runs for time_range in _ranges_of_run(run, is_losing, seconds.wall, between)]


def starts_losing_time(
    sync_intervals: Array,
    references: Mapping[int, ClassReference],
    excess: Array,
    known: Sequence[TimeRange],
    *,
    since_ns: int = 0,
) -> bool:
    """Whether the last seconds lose time, which began a moment ago and is in none of the known time ranges.

    since_ns: lost time that began before does not count.
    """
    if not len(sync_intervals) or not references:
        return False
    seconds = _by_second(sync_intervals, references, excess)
    first, last = next(reversed(list(_runs(seconds.is_losing, _NEAR_BINS))), (-1, -1))
    newest, began_ns = len(seconds.lost_time) - 1, seconds.begin_ns + first * SECOND_NS
    is_young = first >= 0 and last >= newest - 1 and first >= newest - _YOUNG_BINS
    return is_young and began_ns >= since_ns and all(time_range.window.end_ns <= began_ns for time_range in known)


@dataclass(frozen=True, slots=True)
class _Seconds:
    """Lost time and wall time of a stream by the second since `begin_ns`, ns. bins: the end second of each interval."""

    begin_ns: int
    bins: Array
    lost_time: Array
    wall: Array
    is_losing: Array


def _by_second(sync_intervals: Array, references: Mapping[int, ClassReference], excess: Array) -> _Seconds:
    begin_ns = int(sync_intervals["prev_sync_end_ns"][0])
    bins = (sync_intervals["sync_end_ns"] - begin_ns) // SECOND_NS
    count = int(bins.max()) + 1
    lost_time = np.bincount(bins, weights=excess, minlength=count)
    wall = np.bincount(
        bins, weights=sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"], minlength=count
    )
    is_losing = lost_time > np.maximum(_limits(sync_intervals, references, bins, count) * np.maximum(wall, 1), 0)
    return _Seconds(begin_ns, bins, lost_time, wall, is_losing)


def _ranges_of_run(
    run: _Bins, is_losing: Array, wall: Array, between: Callable[[int, int], TimeRange | None]
) -> list[TimeRange]:
    """The time ranges of a run of losing seconds, without seconds at its ends that lost only a little.

    Its core reaches from the first to the last part that is a finding by itself. Without such a part (one step in
    hundreds stalls), or with a core too small to report (one longer stall among many), the entire run is judged; where
    that lost too little, each part by itself.
    """
    first, last = run

    def weighed(part: _Bins) -> TimeRange | None:
        time_range = between(*part)
        around = wall[max(first, part[0] - _AROUND_BINS) : min(last, part[1] + _AROUND_BINS) + 1]
        return (
            replace(time_range, surrounding_wall_ns=max(int(around.sum()), time_range.wall_ns)) if time_range else None
        )

    parts = [(first + begin, first + end) for begin, end in _runs(is_losing[first : last + 1], _NEAR_BINS)]
    worth = [(part, time_range) for part in parts if (time_range := weighed(part))]
    core = weighed((worth[0][0][0], worth[-1][0][1]) if worth else run)
    if core and core.is_reportable:
        return [core]
    whole = weighed(run)
    return [whole] if whole else [time_range for _, time_range in worth if time_range.is_reportable]


def _noise_factor(seconds: int) -> float:
    """Sigmas beyond chance: the worst of very many healthy seconds differs by more than the worst of a few."""
    return float(max(NOISE_FACTOR, 1 + (2 * np.log(max(seconds, 1))) ** 0.5))


def _limits(sync_intervals: Array, references: Mapping[int, ClassReference], bins: Array, count: int) -> Array:
    """The share of each second's wall time that its lost time must exceed."""
    noise = np.zeros(len(sync_intervals))
    for key, best in references.items():
        mine = sync_intervals["step_type"] == key
        per_second = max(1, round(SECOND_NS / max(best.reference.t_ns, 1)))
        noise[mine] = best.noise_of(per_second)
    totals = np.bincount(bins, minlength=count)
    factor = _noise_factor(count)
    mean = np.bincount(bins, weights=noise, minlength=count) / np.maximum(totals, 1)
    limits: Array = np.maximum(MIN_LOST_RATIO, factor * mean)
    return limits


def _runs(is_losing: Array, gap: int) -> Iterator[tuple[int, int]]:
    """Runs of losing seconds, as first and last second, with at most `gap` healthy seconds between two."""
    where = np.flatnonzero(is_losing)
    if not len(where):
        return
    breaks = np.flatnonzero(np.diff(where) > gap + 1)
    firsts = [0, *(breaks + 1).tolist()]
    lasts = [*breaks.tolist(), len(where) - 1]
    yield from ((int(where[first]), int(where[last])) for first, last in zip(firsts, lasts, strict=True))


def _parted(runs: Iterable[_Bins], is_losing: Array, at: int) -> Iterator[_Bins]:
    """These runs, with the run around the second `at` cut where its lost time up to that second was over."""
    for first, last in runs:
        if not first <= at < last:
            yield (first, last)
            continue
        losing = first + np.flatnonzero(is_losing[first : last + 1])
        end, begin = int(losing[losing <= at][-1]), int(losing[losing > at][0])
        yield from [(first, last)] if begin == end + 1 else [(first, end), (begin, last)]


def _time_range(
    sync_intervals: Array, excess: Array, references: Mapping[int, ClassReference], peak: float, factor: float
) -> TimeRange | None:
    """The time range from the first to the last slow sync interval; None if it is not worth a finding."""
    slow = _slow(sync_intervals, excess, references)
    if not slow.any():
        return None
    first, last = int(np.argmax(slow)), len(slow) - 1 - int(np.argmax(slow[::-1]))
    members, lost = sync_intervals[first : last + 1], excess[first : last + 1]
    total, span = float(lost.sum()), int((members["sync_end_ns"] - members["prev_sync_end_ns"]).sum())
    noise = max(best.noise_of(len(members)) for best in references.values())
    if total < max(MIN_LOST_RATIO, factor * noise) * span or total < MIN_LOST_NS:
        return None
    count = max(int(slow.sum()), _missed(sync_intervals, excess, references))
    if count < MIN_SYNC_INTERVALS and float(excess.max()) < MIN_SINGLE_STALL_NS:
        return None
    return TimeRange(
        window=Window(begin_ns=int(members["prev_sync_end_ns"][0]), end_ns=int(members["sync_end_ns"][-1]) + 1),
        lost_ns=round(total),
        wall_ns=span,
        surrounding_wall_ns=span,
        noise_ratio=noise,
        peak_ratio=peak,
        sync_intervals=len(members),
    )


def _missed(sync_intervals: Array, excess: Array, references: Mapping[int, ClassReference]) -> int:
    """How many sync intervals of its step type would have fitted into the worst stall."""
    found = 0.0
    for key, best in references.items():
        mine = excess[sync_intervals["step_type"] == key]
        found = max(found, float(mine.max(initial=0)) / max(best.reference.t_ns, 1))
    return int(found)


def _slow(sync_intervals: Array, excess: Array, references: Mapping[int, ClassReference]) -> Array:
    """A mask of the sync intervals that took longer than the noise of their step type explains."""
    slow = np.zeros(len(sync_intervals), bool)
    for key, best in references.items():
        mine = sync_intervals["step_type"] == key
        min_ratio = max(MIN_LOST_RATIO, NOISE_FACTOR * best.reference.noise_ratio)
        slow[mine] = excess[mine] > min_ratio * best.reference.t_ns
    return slow
