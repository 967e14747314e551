"""On-CPU time outside calls on the critical path, by what the threads were doing, against the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ingero.diagnose.findings import Bucket, FindingKind, Part
from ingero.diagnose.samples.stack_samples import (
    RUN,
    SLEEP,
    Doing,
    SampledTime,
    SampleGroup,
    group_samples,
    host_spans,
    sampled_time,
)
from ingero.events import STATES
from ingero.store.records import Window

if TYPE_CHECKING:
    from ingero.diagnose.cases.case import Case

Array = np.ndarray[Any, np.dtype[Any]]

_ENOUGH_SAMPLES = 20  # of the baseline, before their share of its on-CPU time is taken for more than chance
_MIN_GROWTH = 1.25  # times the baseline's samples, before time counts as grown
_MAX_CHANCE = 0.01  # of as many samples where nothing has changed: many kinds of time and places are tested
_SEARCHED_SHARE = 0.9  # of the lost time: the intervals that lost most are searched (docs/adr/0030)


class HostSampleGroups(NamedTuple):
    """Sample groups on the critical path: `now` of the sync intervals that lost, `before` of the baseline's.

    scale: factor for `before`, to as many sync intervals as `now` has, and to as large a share of the on-CPU time that
    was sampled: ticks miss a thread that timers wake at the same moments.
    """

    now: Sequence[SampleGroup]
    before: Sequence[SampleGroup]
    scale: float

    def of(self, doing: Doing) -> HostSampleGroups:
        """The groups whose thread was doing this."""
        now, before = ([group for group in groups if group.doing is doing] for groups in (self.now, self.before))
        return HostSampleGroups(now, before, self.scale)


def run_growth(case: Case) -> Mapping[Doing, SampledTime]:
    """On-CPU time outside calls beyond the baseline, on the critical path of intervals that lost time, by kind.

    Where the baseline has samples, only growth that is more than chance.
    """
    found, is_compared = {}, bool(case.host_sample_groups.before)
    for doing in Doing:
        now, before, scale = case.host_sample_groups.of(doing)
        grown = growth_beyond(now, before, scale)
        if grown and (not is_compared or is_more(sample_count(now), sample_count(before), scale)):
            found[doing] = grown
    return found


def is_more(count: int, baseline: int, scale: float) -> bool:
    """Whether `count` samples exceed `scale` times those of the baseline by enough, and by more than chance."""
    if count <= _MIN_GROWTH * scale * baseline:
        return False
    return _chance_of(count, count + baseline, scale / (1 + scale)) < _MAX_CHANCE


def _chance_of(least: int, count: int, share: float) -> float:
    """Probability that at least `least` of `count` samples fall into a part of time with this expected `share`.

    An exact test of two Poisson counts whose rates are not known (Przyborowski and Wilenski, 1940).
    """
    if not 0 < share < 1:
        return float(share >= 1)
    logs = (math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(least, count + 1))
    odds = (log + k * math.log(share) + (count - k) * math.log1p(-share) for k, log in enumerate(logs, least))
    return math.fsum(math.exp(log_chance) for log_chance in odds)


def sample_count(groups: Sequence[SampleGroup]) -> int:
    """The number of samples in these groups."""
    return sum(group.count for group in groups)


def host_sample_groups(case: Case) -> HostSampleGroups:
    """The samples of a case in the intervals that lost most: half of all others exceed their median anyway."""
    losing = case.sync_intervals[intervals_holding(_searched_share(case), case.excess_ns)]
    process = case.process.process
    whole = (case.evidence.sync_intervals(window, process) for window in case.baseline_windows)
    baseline = np.concatenate([case.evidence.no_sync_intervals, *whole])
    now = _launching_sample_groups(case, (case.window,), losing)
    before = _launching_sample_groups(case, case.baseline_windows, baseline)
    scale = len(losing) / max(len(baseline), 1)
    return HostSampleGroups(now, before, scale * _missed_before(now, losing, before, baseline))


def _missed_before(now: Sequence[SampleGroup], losing: Array, before: Sequence[SampleGroup], baseline: Array) -> float:
    """How many times larger the sampled share of the host's on-CPU time is than in the baseline; at least 1.

    The time in calls is not sampled and counts as missed: a smaller share of calls may look like more of the samples,
    and never like less.
    """
    if sample_count(before) < _ENOUGH_SAMPLES:
        return 1.0
    shares = [
        sum(group.ns for group in groups) / max(_run_ns(intervals), 1)
        for groups, intervals in ((now, losing), (before, baseline))
    ]
    return max(shares[0] / shares[1], 1.0) if shares[1] else 1.0


def _run_ns(sync_intervals: Array) -> int:
    run = STATES.index("run")
    clocks = (sync_intervals[f"{part}_state_ns"][:, run] for part in ("idle", "launch"))
    return int(sum(np.maximum(mine, 0).sum() for mine in clocks))


def _launching_sample_groups(case: Case, windows: Sequence[Window], sync_intervals: Array) -> list[SampleGroup]:
    """Where launching threads ran: each in its own part of the step, and while another thread waited for it.

    A thread without Python frames gets the line at which the other thread waits for it.
    """
    process, own = case.process.process, host_spans(sync_intervals)
    found = group_samples(case.evidence, process, windows, own, RUN)
    meanwhile = case.evidence.launching(process).spans(sync_intervals)
    if not meanwhile:
        return found
    asleep = (group.stack for group in group_samples(case.evidence, process, windows, own, SLEEP))
    waiting = next((stack for stack in asleep if stack and stack.python), None)
    beside = group_samples(case.evidence, process, windows, meanwhile, RUN)
    return found + [
        group if group.stack and group.stack.python else replace(group, stack=waiting or group.stack)
        for group in beside
    ]


def intervals_holding(share: float, excess_ns: Array) -> Array:
    """A mask of the fewest sync intervals that hold this share of the time lost by all losing ones."""
    lost = np.maximum(excess_ns, 0)
    order = np.argsort(-lost, kind="stable")
    found: Array = np.zeros(len(lost), bool)
    found[order[: int(np.searchsorted(np.cumsum(lost[order]), share * lost.sum())) + 1]] = True
    return found & (lost > 0)


def _searched_share(case: Case) -> float:
    """The share of the lost time that is searched: all of a bottleneck, which is compared with zero."""
    return 1.0 if case.kind is FindingKind.BOTTLENECK else _SEARCHED_SHARE


def growth_beyond(now: Sequence[SampleGroup], before: Sequence[SampleGroup], scale: float) -> SampledTime | None:
    """The sampled time of `now` beyond `scale` times that of the baseline; None where there is no such growth."""
    mine = sampled_time(now)
    grown = mine.ns - scale * sum(group.ns for group in before)
    return SampledTime(ns=grown, count=round(mine.count * grown / mine.ns), line=mine.line) if grown > 0 else None


def claim_run_time(case: Case, grown: SampledTime | None, *, but_ns: float = 0.0) -> dict[Bucket, int]:
    """Unclaimed on-CPU time that these samples explain; empty where they are too few to name it.

    but_ns: the part of the unclaimed time that is known to be something else.
    """
    if grown is None or not grown.is_enough:
        return {}
    parts, states = (Part.IDLE, Part.LAUNCH), ("run",)
    # few samples in the sample of a long time range: their error would be scaled up, too
    is_rough = case.kind is FindingKind.BOTTLENECK and case.is_sampled
    sampled_ns = (grown.ns if is_rough else grown.at_most_ns) * case.scale / _searched_share(case)
    unclaimed_ns = sum(case.claimable(parts, states).values())
    return case.claimable(parts, states, min(sampled_ns, max(unclaimed_ns - but_ns, 0.0)))
