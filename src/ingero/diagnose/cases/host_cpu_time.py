"""On-CPU time outside calls on the critical path, by what it was for, against the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ingero.diagnose.findings import Bucket, FindingKind, Part
from ingero.diagnose.samples.stack_samples import RUN, SLEEP, Doing, Spent, Stay, host_spans, spent, stays
from ingero.store.records import Window

if TYPE_CHECKING:
    from ingero.diagnose.cases.case import Case

Array = np.ndarray[Any, np.dtype[Any]]

_MORE = 1.25  # times the samples of the reference,
_CHANCE = 0.01  # of as many where nothing has changed: several kinds of time and many places are asked for
_MOST = 0.9  # of a lost time is looked at where it is thickest


class HostStays(NamedTuple):
    """Samples on the critical path: of the sync intervals that lost, of the reference, and the factor for these."""

    now: Sequence[Stay]
    before: Sequence[Stay]
    scale: float

    def of(self, doing: Doing) -> HostStays:
        """Those that did one thing."""
        now, before = ([one for one in found if one.doing is doing] for found in (self.now, self.before))
        return HostStays(now, before, self.scale)


def run_growth(case: Case) -> Mapping[Doing, Spent]:
    """On-CPU time outside calls on the path of the sync intervals that lost, beyond the reference, by what it was for.

    Where the reference was sampled at all, only what is more than chance.
    """
    found, is_compared = {}, bool(case.host_stays.before)
    for doing in Doing:
        now, before, scale = case.host_stays.of(doing)
        grown = beyond(now, before, scale)
        if grown and (not is_compared or is_more(count_of(now), count_of(before), scale)):
            found[doing] = grown
    return found


def is_more(count: int, usual: int, scale: float) -> bool:
    """Whether so many samples are beyond those of the reference, each worth `scale` of them, and beyond chance."""
    return count > _MORE * scale * usual and _chance_of(count, count + usual, scale / (1 + scale)) < _CHANCE


def _chance_of(least: int, count: int, share: float) -> float:
    """Of at least so many of `count` samples in a part of the time in which this share of them is to be expected.

    That is how two counts of rare events are compared if neither rate is known (Przyborowski and Wilenski, 1940).
    """
    if not 0 < share < 1:
        return float(share >= 1)
    logs = (math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(least, count + 1))
    odds = ((k, one + k * math.log(share) + (count - k) * math.log1p(-share)) for k, one in enumerate(logs, least))
    return math.fsum(math.exp(one) for _, one in odds)


def count_of(found: Sequence[Stay]) -> int:
    """How many samples these are."""
    return sum(one.count for one in found)


def host_stays(case: Case) -> HostStays:
    """The samples of a case, in the sync intervals that lost most: half of all others are beyond their median, too."""
    losing = case.sync_intervals[holding(_looked_at_share(case), case.excess_ns)]
    return HostStays(_launching_stays(case, (case.window,), losing), *_usual_stays(case, len(losing)))


def _launching_stays(case: Case, windows: Sequence[Window], sync_intervals: Array) -> list[Stay]:
    """Where the threads that feed the GPU ran: each in its own part of the step, and while another waited for it.

    One without frames of Python is at the line that waits for it.
    """
    process, own = case.process.process, host_spans(sync_intervals)
    found = stays(case.evidence, process, windows, own, RUN)
    meanwhile = case.evidence.launching(process).spans(sync_intervals)
    if not meanwhile:
        return found
    asleep = (one.stack for one in stays(case.evidence, process, windows, own, SLEEP))
    waiting = next((stack for stack in asleep if stack and stack.python), None)
    beside = stays(case.evidence, process, windows, meanwhile, RUN)
    return found + [
        one if one.stack and one.stack.python else replace(one, stack=waiting or one.stack) for one in beside
    ]


def holding(share: float, excess_ns: Array) -> Array:
    """The fewest sync intervals that hold this share of what was lost by those that lost."""
    lost = np.maximum(excess_ns, 0)
    order = np.argsort(-lost, kind="stable")
    found: Array = np.zeros(len(lost), bool)
    found[order[: int(np.searchsorted(np.cumsum(lost[order]), share * lost.sum())) + 1]] = True
    return found & (lost > 0)


def _looked_at_share(case: Case) -> float:
    """Against zero every sync interval lost all of its time."""
    return 1.0 if case.kind is FindingKind.BOTTLENECK else _MOST


def beyond(now: Sequence[Stay], before: Sequence[Stay], scale: float) -> Spent | None:
    """What some samples are more than those of the reference; None where they are not."""
    mine = spent(now)
    grown = mine.ns - scale * sum(one.ns for one in before)
    return Spent(ns=grown, count=round(mine.count * grown / mine.ns), line=mine.line) if grown > 0 else None


def claim_run(case: Case, grown: Spent | None, *, but_ns: float = 0.0) -> dict[Bucket, int]:
    """Lost time that the samples account for, of what is left of it; none where they are too few to name it.

    but_ns: of what is left, what is known to be something else.
    """
    if grown is None or not grown.is_enough:
        return {}
    parts, states = (Part.IDLE, Part.LAUNCH), ("run",)
    sampled_ns = grown.at_most_ns * case.scale / _looked_at_share(case)
    left_ns = sum(case.take(parts, states).values())
    return case.take(parts, states, min(sampled_ns, max(left_ns - but_ns, 0.0)))


def _usual_stays(case: Case, sync_intervals: int) -> tuple[list[Stay], float]:
    """The same in the reference, and by what to multiply it for so many sync intervals."""
    process = case.process.process
    usual = np.concatenate(
        [case.evidence.no_sync_intervals, *(case.evidence.sync_intervals(one, process) for one in case.baselines)]
    )
    before = _launching_stays(case, case.baselines, usual)
    return before, sync_intervals / max(len(usual), 1)
