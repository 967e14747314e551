"""When a lane lost time: signed loss by second, and the stretches in which it is more than silence and noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ingero.diagnose.regimes import Usual
from ingero.store.records import Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]
_Bins: TypeAlias = "tuple[int, int]"  # first and last

MIN_RATIO = 0.03  # of wall time; below, silence is right
UNOWNED_RATIO = 0.05  # of wall time; what is lost below that by nobody's doing is what two healthy minutes differ by
NEVER_RATIO = 1.0  # for what owns lost time, and is not told by itself
NOISE_FACTOR = 3
MIN_EPOCHS = 5  # that were slow, or would have fitted into one stall
ONE_LOSS_NS = 250_000_000  # a single stall this long needs no company
MIN_LOSS_NS = 100_000_000  # a hiccup of a tenth of a second wakes nobody
_GAP_BINS = 4  # quiet seconds between two lossy ones of one stretch
_NEAR_BINS = 1  # the same for seconds that are looked at together
_YOUNG_BINS = 3  # a loss that has lasted for so many seconds and is not told yet needs time, not hurry
_AROUND_BINS = 30  # on either side: a look at a recording that goes on sees no more, and is to answer the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of time in which one lane lost. peak_ratio: of its worst second.

    around_ns: wall time of the lossy seconds that it was cut out of, half a minute on either side; a loss must be worth
    telling against that.
    """

    window: Window
    loss_ns: int
    wall_ns: int
    around_ns: int
    noise_ratio: float
    peak_ratio: float
    epochs: int

    @property
    def is_told(self) -> bool:
        """Whether it is enough of the time around it for anybody to be told."""
        return self.loss_ns >= MIN_RATIO * self.around_ns

    @property
    def loss_ratio(self) -> float:
        """Share of the wall time."""
        return self.loss_ns / max(self.wall_ns, 1)


def excess_ns(epochs: Array, usual: Mapping[int, Usual]) -> Array:
    """What each epoch took beyond its class, signed; 0 for classes without a reference."""
    lengths = (epochs["b_ns"] - epochs["a_ns"]).astype(np.float64)
    excess = np.zeros(len(epochs))
    for key, one in usual.items():
        mine = epochs["class_key"] == key
        excess[mine] = lengths[mine] - one.reference.t_ns
    return excess


def lossy_stretches(epochs: Array, usual: Mapping[int, Usual], excess: Array, *, apart_ns: int = 0) -> list[Stretch]:
    """The stretches with a finding's worth of loss, in order of time; `excess` as `excess_ns` answers it.

    apart_ns: what was lost before and after that moment is bridged by no quiet second.
    """
    if not len(epochs) or not usual:
        return []
    seconds = _by_second(epochs, usual, excess)
    factor = _noise_factor(len(seconds.loss))

    def between(first: int, last: int) -> Stretch | None:
        begin, end = np.searchsorted(seconds.bins, (first, last + 1))
        ratios = seconds.loss[first : last + 1] / np.maximum(seconds.wall[first : last + 1], 1)
        return _stretch(epochs[begin:end], excess[begin:end], usual, float(ratios.max()), factor)

    is_lossy = seconds.is_lossy
    runs = _parted(_runs(is_lossy, _GAP_BINS), is_lossy, (apart_ns - seconds.begin_ns) // SECOND_NS)
    return [one for run in runs for one in _of_run(run, is_lossy, seconds.wall, between)]


def begins_to_lose(
    epochs: Array, usual: Mapping[int, Usual], excess: Array, told: Sequence[Stretch], *, since_ns: int = 0
) -> bool:
    """Whether the last seconds lose more than is usual, since a moment ago, and none of these stretches tells of it.

    since_ns: what began before is none.
    """
    if not len(epochs) or not usual:
        return False
    seconds = _by_second(epochs, usual, excess)
    first, last = next(reversed(list(_runs(seconds.is_lossy, _NEAR_BINS))), (-1, -1))
    newest, began_ns = len(seconds.loss) - 1, seconds.begin_ns + first * SECOND_NS
    is_young = first >= 0 and last >= newest - 1 and first >= newest - _YOUNG_BINS
    return is_young and began_ns >= since_ns and all(one.window.end_ns <= began_ns for one in told)


@dataclass(frozen=True, slots=True)
class _Seconds:
    """A lane by the second since `begin_ns`. bins: of each epoch, the second in which it ended."""

    begin_ns: int
    bins: Array
    loss: Array
    wall: Array
    is_lossy: Array


def _by_second(epochs: Array, usual: Mapping[int, Usual], excess: Array) -> _Seconds:
    begin_ns = int(epochs["a_ns"][0])
    bins = (epochs["b_ns"] - begin_ns) // SECOND_NS
    count = int(bins.max()) + 1
    loss = np.bincount(bins, weights=excess, minlength=count)
    wall = np.bincount(bins, weights=epochs["b_ns"] - epochs["a_ns"], minlength=count)
    is_lossy = loss > np.maximum(_limits(epochs, usual, bins, count) * np.maximum(wall, 1), 0)
    return _Seconds(begin_ns, bins, loss, wall, is_lossy)


def _of_run(run: _Bins, is_lossy: Array, wall: Array, between: Callable[[int, int], Stretch | None]) -> list[Stretch]:
    """A run without the seconds at its ends that lost a little, some time before or after what is a loss by itself.

    Where nothing of it is, as where one step in hundreds stalls, or where that is too little of it to be told, as one
    longer stall among many, all of it is looked at together; where that lost too little, each loss in it by itself.
    """
    first, last = run

    def weighed(part: _Bins) -> Stretch | None:
        stretch = between(*part)
        around = wall[max(first, part[0] - _AROUND_BINS) : min(last, part[1] + _AROUND_BINS) + 1]
        return replace(stretch, around_ns=max(int(around.sum()), stretch.wall_ns)) if stretch else None

    parts = [(first + begin, first + end) for begin, end in _runs(is_lossy[first : last + 1], _NEAR_BINS)]
    worth = [(part, one) for part in parts if (one := weighed(part))]
    core = weighed((worth[0][0][0], worth[-1][0][1]) if worth else run)
    if core and core.is_told:
        return [core]
    whole = weighed(run)
    return [whole] if whole else [one for _, one in worth if one.is_told]


def _noise_factor(seconds: int) -> float:
    """How many sigmas are no chance: the worst of very many healthy seconds is further off than that of a few."""
    return float(max(NOISE_FACTOR, 1 + (2 * np.log(max(seconds, 1))) ** 0.5))


def _limits(epochs: Array, usual: Mapping[int, Usual], bins: Array, count: int) -> Array:
    """Share of each second's wall time that its loss must exceed."""
    noise = np.zeros(len(epochs))
    for key, one in usual.items():
        mine = epochs["class_key"] == key
        per_second = max(1, round(SECOND_NS / max(one.reference.t_ns, 1)))
        noise[mine] = one.noise_of(per_second)
    totals = np.bincount(bins, minlength=count)
    factor = _noise_factor(count)
    mean = np.bincount(bins, weights=noise, minlength=count) / np.maximum(totals, 1)
    limits: Array = np.maximum(MIN_RATIO, factor * mean)
    return limits


def _runs(is_lossy: Array, gap: int) -> Iterator[tuple[int, int]]:
    """First and last of the lossy seconds with at most so many quiet ones between them."""
    where = np.flatnonzero(is_lossy)
    if not len(where):
        return
    breaks = np.flatnonzero(np.diff(where) > gap + 1)
    firsts = [0, *(breaks + 1).tolist()]
    lasts = [*breaks.tolist(), len(where) - 1]
    yield from ((int(where[first]), int(where[last])) for first, last in zip(firsts, lasts, strict=True))


def _parted(runs: Iterable[_Bins], is_lossy: Array, at: int) -> Iterator[_Bins]:
    """The same, the one around a second cut where the loss until that was over."""
    for first, last in runs:
        if not first <= at < last:
            yield (first, last)
            continue
        lossy = first + np.flatnonzero(is_lossy[first : last + 1])
        end, begin = int(lossy[lossy <= at][-1]), int(lossy[lossy > at][0])
        yield from [(first, last)] if begin == end + 1 else [(first, end), (begin, last)]


def _stretch(epochs: Array, excess: Array, usual: Mapping[int, Usual], peak: float, factor: float) -> Stretch | None:
    """The stretch from the first to the last epoch that lost; None if it is not worth a finding."""
    slow = _slow(epochs, excess, usual)
    if not slow.any():
        return None
    first, last = int(np.argmax(slow)), len(slow) - 1 - int(np.argmax(slow[::-1]))
    members, lost = epochs[first : last + 1], excess[first : last + 1]
    total, span = float(lost.sum()), int((members["b_ns"] - members["a_ns"]).sum())
    noise = max(one.noise_of(len(members)) for one in usual.values())
    if total < max(MIN_RATIO, factor * noise) * span or total < MIN_LOSS_NS:
        return None
    if max(int(slow.sum()), _missed(epochs, excess, usual)) < MIN_EPOCHS and float(excess.max()) < ONE_LOSS_NS:
        return None
    return Stretch(
        window=Window(begin_ns=int(members["a_ns"][0]), end_ns=int(members["b_ns"][-1]) + 1),
        loss_ns=round(total),
        wall_ns=span,
        around_ns=span,
        noise_ratio=noise,
        peak_ratio=peak,
        epochs=len(members),
    )


def _missed(epochs: Array, excess: Array, usual: Mapping[int, Usual]) -> int:
    """How many epochs of its class would have fitted into the worst stall."""
    found = 0.0
    for key, one in usual.items():
        mine = excess[epochs["class_key"] == key]
        found = max(found, float(mine.max(initial=0)) / max(one.reference.t_ns, 1))
    return int(found)


def _slow(epochs: Array, excess: Array, usual: Mapping[int, Usual]) -> Array:
    """Epochs beyond what is usual for one of their class."""
    slow = np.zeros(len(epochs), bool)
    for key, one in usual.items():
        mine = epochs["class_key"] == key
        usual_ns = one.reference.t_ns
        slow[mine] = excess[mine] > max(MIN_RATIO, NOISE_FACTOR * one.reference.noise_ratio) * usual_ns
    return slow
