"""When a stream lost time: signed lost time by second, and the time ranges where it is more than silence and noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ingero.diagnose.lost_time.best_regime import Usual
from ingero.store.records import Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]
_Bins: TypeAlias = "tuple[int, int]"  # first and last

MIN_RATIO = 0.03  # of wall time; below, silence is right
UNOWNED_RATIO = 0.05  # of wall time; what is lost below that by nobody's doing is what two healthy minutes differ by
NEVER_RATIO = 1.0  # for what owns lost time, and is not told by itself
NOISE_FACTOR = 3
MIN_SYNC_INTERVALS = 5  # that were slow, or would have fitted into one stall
ONE_LOST_NS = 250_000_000  # a single stall this long needs no company
MIN_LOST_NS = 100_000_000  # a hiccup of a tenth of a second wakes nobody
_GAP_BINS = 4  # quiet seconds between two lossy ones of one time range
_NEAR_BINS = 1  # the same for seconds that are looked at together
_YOUNG_BINS = 3  # a lost time that has lasted for so many seconds and is not told yet needs time, not hurry
_AROUND_BINS = 30  # on either side: a look at a recording that goes on sees no more, and is to answer the same


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """A time range in which one stream lost. peak_ratio: of its worst second.

    around_ns: wall time of the lossy seconds that it was cut out of, half a minute on either side; a lost time must be
    worth telling against that.
    """

    window: Window
    lost_ns: int
    wall_ns: int
    around_ns: int
    noise_ratio: float
    peak_ratio: float
    sync_intervals: int

    @property
    def is_told(self) -> bool:
        """Whether it is enough of the time around it for anybody to be told."""
        return self.lost_ns >= MIN_RATIO * self.around_ns

    @property
    def lost_ratio(self) -> float:
        """Share of the wall time."""
        return self.lost_ns / max(self.wall_ns, 1)


def excess_ns(sync_intervals: Array, usual: Mapping[int, Usual]) -> Array:
    """What each sync interval took beyond its class, signed; 0 for classes without a reference."""
    lengths = (sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]).astype(np.float64)
    excess = np.zeros(len(sync_intervals))
    for key, one in usual.items():
        mine = sync_intervals["step_type"] == key
        excess[mine] = lengths[mine] - one.reference.t_ns
    return excess


def losing_ranges(
    sync_intervals: Array, usual: Mapping[int, Usual], excess: Array, *, apart_ns: int = 0
) -> list[TimeRange]:
    """The time ranges with a finding's worth of lost time, in order of time; `excess` as `excess_ns` answers it.

    apart_ns: what was lost before and after that moment is bridged by no quiet second.
    """
    if not len(sync_intervals) or not usual:
        return []
    seconds = _by_second(sync_intervals, usual, excess)
    factor = _noise_factor(len(seconds.lost_time))

    def between(first: int, last: int) -> TimeRange | None:
        begin, end = np.searchsorted(seconds.bins, (first, last + 1))
        ratios = seconds.lost_time[first : last + 1] / np.maximum(seconds.wall[first : last + 1], 1)
        return _time_range(sync_intervals[begin:end], excess[begin:end], usual, float(ratios.max()), factor)

    is_losing = seconds.is_losing
    runs = _parted(_runs(is_losing, _GAP_BINS), is_losing, (apart_ns - seconds.begin_ns) // SECOND_NS)
    return [one for run in runs for one in _of_run(run, is_losing, seconds.wall, between)]


def begins_to_lose(
    sync_intervals: Array, usual: Mapping[int, Usual], excess: Array, told: Sequence[TimeRange], *, since_ns: int = 0
) -> bool:
    """Whether the last seconds lose more than is usual, since a moment ago, and none of these time ranges tells of it.

    since_ns: what began before is none.
    """
    if not len(sync_intervals) or not usual:
        return False
    seconds = _by_second(sync_intervals, usual, excess)
    first, last = next(reversed(list(_runs(seconds.is_losing, _NEAR_BINS))), (-1, -1))
    newest, began_ns = len(seconds.lost_time) - 1, seconds.begin_ns + first * SECOND_NS
    is_young = first >= 0 and last >= newest - 1 and first >= newest - _YOUNG_BINS
    return is_young and began_ns >= since_ns and all(one.window.end_ns <= began_ns for one in told)


@dataclass(frozen=True, slots=True)
class _Seconds:
    """A stream by the second since `begin_ns`. bins: of each sync interval, the second in which it ended."""

    begin_ns: int
    bins: Array
    lost_time: Array
    wall: Array
    is_losing: Array


def _by_second(sync_intervals: Array, usual: Mapping[int, Usual], excess: Array) -> _Seconds:
    begin_ns = int(sync_intervals["prev_sync_end_ns"][0])
    bins = (sync_intervals["sync_end_ns"] - begin_ns) // SECOND_NS
    count = int(bins.max()) + 1
    lost_time = np.bincount(bins, weights=excess, minlength=count)
    wall = np.bincount(
        bins, weights=sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"], minlength=count
    )
    is_losing = lost_time > np.maximum(_limits(sync_intervals, usual, bins, count) * np.maximum(wall, 1), 0)
    return _Seconds(begin_ns, bins, lost_time, wall, is_losing)


def _of_run(
    run: _Bins, is_losing: Array, wall: Array, between: Callable[[int, int], TimeRange | None]
) -> list[TimeRange]:
    """A run without the seconds at its ends that lost a little, some time before or after what is a lost time by
    itself.

    Where nothing of it is, as where one step in hundreds stalls, or where that is too little of it to be told, as one
    longer stall among many, all of it is looked at together; where that lost too little, each lost time in it by
    itself.
    """
    first, last = run

    def weighed(part: _Bins) -> TimeRange | None:
        time_range = between(*part)
        around = wall[max(first, part[0] - _AROUND_BINS) : min(last, part[1] + _AROUND_BINS) + 1]
        return replace(time_range, around_ns=max(int(around.sum()), time_range.wall_ns)) if time_range else None

    parts = [(first + begin, first + end) for begin, end in _runs(is_losing[first : last + 1], _NEAR_BINS)]
    worth = [(part, one) for part in parts if (one := weighed(part))]
    core = weighed((worth[0][0][0], worth[-1][0][1]) if worth else run)
    if core and core.is_told:
        return [core]
    whole = weighed(run)
    return [whole] if whole else [one for _, one in worth if one.is_told]


def _noise_factor(seconds: int) -> float:
    """How many sigmas are no chance: the worst of very many healthy seconds is further off than that of a few."""
    return float(max(NOISE_FACTOR, 1 + (2 * np.log(max(seconds, 1))) ** 0.5))


def _limits(sync_intervals: Array, usual: Mapping[int, Usual], bins: Array, count: int) -> Array:
    """Share of each second's wall time that its lost time must exceed."""
    noise = np.zeros(len(sync_intervals))
    for key, one in usual.items():
        mine = sync_intervals["step_type"] == key
        per_second = max(1, round(SECOND_NS / max(one.reference.t_ns, 1)))
        noise[mine] = one.noise_of(per_second)
    totals = np.bincount(bins, minlength=count)
    factor = _noise_factor(count)
    mean = np.bincount(bins, weights=noise, minlength=count) / np.maximum(totals, 1)
    limits: Array = np.maximum(MIN_RATIO, factor * mean)
    return limits


def _runs(is_losing: Array, gap: int) -> Iterator[tuple[int, int]]:
    """First and last of the lossy seconds with at most so many quiet ones between them."""
    where = np.flatnonzero(is_losing)
    if not len(where):
        return
    breaks = np.flatnonzero(np.diff(where) > gap + 1)
    firsts = [0, *(breaks + 1).tolist()]
    lasts = [*breaks.tolist(), len(where) - 1]
    yield from ((int(where[first]), int(where[last])) for first, last in zip(firsts, lasts, strict=True))


def _parted(runs: Iterable[_Bins], is_losing: Array, at: int) -> Iterator[_Bins]:
    """The same, the one around a second cut where the lost time until that was over."""
    for first, last in runs:
        if not first <= at < last:
            yield (first, last)
            continue
        losing = first + np.flatnonzero(is_losing[first : last + 1])
        end, begin = int(losing[losing <= at][-1]), int(losing[losing > at][0])
        yield from [(first, last)] if begin == end + 1 else [(first, end), (begin, last)]


def _time_range(
    sync_intervals: Array, excess: Array, usual: Mapping[int, Usual], peak: float, factor: float
) -> TimeRange | None:
    """The time range from the first to the last sync interval that lost; None if it is not worth a finding."""
    slow = _slow(sync_intervals, excess, usual)
    if not slow.any():
        return None
    first, last = int(np.argmax(slow)), len(slow) - 1 - int(np.argmax(slow[::-1]))
    members, lost = sync_intervals[first : last + 1], excess[first : last + 1]
    total, span = float(lost.sum()), int((members["sync_end_ns"] - members["prev_sync_end_ns"]).sum())
    noise = max(one.noise_of(len(members)) for one in usual.values())
    if total < max(MIN_RATIO, factor * noise) * span or total < MIN_LOST_NS:
        return None
    if (
        max(int(slow.sum()), _missed(sync_intervals, excess, usual)) < MIN_SYNC_INTERVALS
        and float(excess.max()) < ONE_LOST_NS
    ):
        return None
    return TimeRange(
        window=Window(begin_ns=int(members["prev_sync_end_ns"][0]), end_ns=int(members["sync_end_ns"][-1]) + 1),
        lost_ns=round(total),
        wall_ns=span,
        around_ns=span,
        noise_ratio=noise,
        peak_ratio=peak,
        sync_intervals=len(members),
    )


def _missed(sync_intervals: Array, excess: Array, usual: Mapping[int, Usual]) -> int:
    """How many sync intervals of its class would have fitted into the worst stall."""
    found = 0.0
    for key, one in usual.items():
        mine = excess[sync_intervals["step_type"] == key]
        found = max(found, float(mine.max(initial=0)) / max(one.reference.t_ns, 1))
    return int(found)


def _slow(sync_intervals: Array, excess: Array, usual: Mapping[int, Usual]) -> Array:
    """Sync intervals beyond what is usual for one of their class."""
    slow = np.zeros(len(sync_intervals), bool)
    for key, one in usual.items():
        mine = sync_intervals["step_type"] == key
        usual_ns = one.reference.t_ns
        slow[mine] = excess[mine] > max(MIN_RATIO, NOISE_FACTOR * one.reference.noise_ratio) * usual_ns
    return slow
