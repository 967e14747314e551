"""Computing that grew because there is more of it, shown by samples at other code lines than in the baseline.

A slower CPU (its sibling hyperthread is in use, its clock is lower, its caches are shared) makes the same lines take
longer, all by the same factor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.host_cpu_time import HostSampleGroups, growth_beyond, is_more, sample_count
from ingero.diagnose.findings import CodeLine
from ingero.diagnose.samples.stack_samples import MIN_SAMPLES, Doing, SampledTime, SampleGroup, may_launch

_Place: TypeAlias = "CodeLine | tuple[str, str] | None"
_PlaceOf: TypeAlias = Callable[[SampleGroup], _Place]

MAX_CPU_SLOWDOWN = 3.0  # times as long for the same work on a slower CPU; a larger growth is more work


def extra_computing_time(case: Case) -> SampledTime | None:
    """Computing at lines or in functions whose share of it grew, beyond the baseline; None where there is none.

    A bottleneck has no baseline: all of its computing counts.
    """
    now, before, scale = _computing(case)
    busier = [(_busier_places(now, before, scale, place_of), place_of) for place_of in (_function, _line)]
    now_busier, baseline_busier = (
        [group for group in groups if any(place_of(group) in places for places, place_of in busier)]
        for groups in (now, before)
    )
    return growth_beyond(now_busier, baseline_busier, scale)


def computes_at_same_places(case: Case) -> bool:
    """Whether samples show computing at the same places as in the baseline, and at none of them more often."""
    now, before, _ = _computing(case)
    return min(sample_count(now), sample_count(before)) >= MIN_SAMPLES and extra_computing_time(case) is None


def _computing(case: Case) -> HostSampleGroups:
    """Computing; where launches are not traced, without what may be one: a framework's own code, which launches."""
    found = case.host_sample_groups.of(Doing.COMPUTING)
    if case.knows_launches:
        return found
    now, before = ([group for group in groups if not may_launch(group.stack)] for groups in (found.now, found.before))
    return HostSampleGroups(now, before, found.scale)


def _busier_places(
    now: Sequence[SampleGroup], before: Sequence[SampleGroup], scale: float, place_of: _PlaceOf
) -> set[_Place]:
    """Places with more samples than a uniform slowdown of the others (of all, if those are few) accounts for."""
    counts, baseline = _counts_by_place(now, place_of), _counts_by_place(before, place_of)
    total, baseline_total = sample_count(now), sample_count(before)

    def is_busier(place: _Place, count: int) -> bool:
        now_others, others = total - count, baseline_total - baseline[place]
        if others < MIN_SAMPLES:
            now_others, others = total, baseline_total
        slower = now_others / max(scale * others, 1.0)
        return is_more(count, baseline[place], scale * min(MAX_CPU_SLOWDOWN, max(1.0, slower)))

    return {place for place, count in counts.items() if not before or is_busier(place, count)}


def _counts_by_place(groups: Sequence[SampleGroup], place_of: _PlaceOf) -> Counter[_Place]:
    counts: Counter[_Place] = Counter()
    for group in groups:
        counts[place_of(group)] += group.count
    return counts


def _function(group: SampleGroup) -> _Place:
    return (group.line.file, group.line.function) if group.line else None


def _line(group: SampleGroup) -> _Place:
    return group.line
