"""Whether a thread that computes longer has more to compute: then it is at other places than in a healthy loop.

A CPU that runs slower (its other hardware thread is in use, its clock is lower, its caches are shared) makes the same
lines take longer, all alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.host_cpu_time import HostStays, beyond, count_of, is_more
from ingero.diagnose.findings import CodeLine
from ingero.diagnose.samples.stack_samples import MIN_SAMPLES, Doing, Spent, Stay

_Place: TypeAlias = "CodeLine | tuple[str, str] | None"
_PlaceOf: TypeAlias = Callable[[Stay], _Place]

_SLOWEST = 3.0  # times that a CPU takes for the same work; what grows by more is more work


def more_computing(case: Case) -> Spent | None:
    """Of computing, what is at lines or in functions with a larger share of it than in the reference, beyond it.

    Against zero everything is more. None where nothing is.
    """
    now, before, scale = _computing(case)
    busier = [(_busier(now, before, scale, place_of), place_of) for place_of in (_function, _line)]
    mine, usual = (
        [one for one in found if any(place_of(one) in places for places, place_of in busier)] for found in (now, before)
    )
    return beyond(mine, usual, scale)


def is_same_work(case: Case) -> bool:
    """Whether it was seen computing where it does in the reference, and nowhere more than there."""
    now, before, _ = _computing(case)
    return min(count_of(now), count_of(before)) >= MIN_SAMPLES and more_computing(case) is None


def _computing(case: Case) -> HostStays:
    return case.host_stays.of(Doing.COMPUTING)


def _busier(now: Sequence[Stay], before: Sequence[Stay], scale: float, place_of: _PlaceOf) -> set[_Place]:
    """The places with more samples than if they took longer as the others do, or as all if those are few."""
    counts, usual = _by_place(now, place_of), _by_place(before, place_of)
    total, usual_total = count_of(now), count_of(before)

    def is_busier(place: _Place, count: int) -> bool:
        now_others, others = total - count, usual_total - usual[place]
        if others < MIN_SAMPLES:
            now_others, others = total, usual_total
        slower = now_others / max(scale * others, 1.0)
        return is_more(count, usual[place], scale * min(_SLOWEST, max(1.0, slower)))

    return {place for place, count in counts.items() if not before or is_busier(place, count)}


def _by_place(found: Sequence[Stay], place_of: _PlaceOf) -> Counter[_Place]:
    counts: Counter[_Place] = Counter()
    for one in found:
        counts[place_of(one)] += one.count
    return counts


def _function(one: Stay) -> _Place:
    return (one.line.file, one.line.function) if one.line else None


def _line(one: Stay) -> _Place:
    return one.line
