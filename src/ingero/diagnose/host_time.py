"""On-CPU time outside calls on the path to the device, by what it was for, against the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingero.diagnose.cases import Case
from ingero.diagnose.model import Bucket, Part
from ingero.diagnose.places import RUN, Doing, Spent, Stay, host_spans, spent, stays


def run_growth(case: Case) -> Mapping[Doing, Spent]:
    """On-CPU time outside calls on the path of the epochs that lost, beyond the reference, by what it was for."""
    now, before, scale = host_stays(case)
    found = {}
    for doing in Doing:
        mine, usual = ([one for one in stay if one.doing is doing] for stay in (now, before))
        if grown := beyond(mine, usual, scale):
            found[doing] = grown
    return found


def host_stays(case: Case) -> tuple[list[Stay], list[Stay], float]:
    """The samples of the epochs that lost, those of the reference, and by what to multiply these."""
    lossy = case.epochs[case.excess_ns > 0]
    now = stays(case.evidence, case.process.process, case.window, host_spans(lossy), RUN)
    before, scale = _usual_stays(case, len(lossy))
    return now, before, scale


def beyond(now: Sequence[Stay], before: Sequence[Stay], scale: float) -> Spent | None:
    """What some samples are more than those of the reference; None where they are not."""
    mine = spent(now)
    grown = mine.ns - scale * sum(one.ns for one in before)
    return Spent(ns=grown, count=round(mine.count * grown / mine.ns), line=mine.line) if grown > 0 else None


def claim_run(case: Case, grown: Spent | None) -> dict[Bucket, int]:
    """Lost time that the samples account for, of what is left of it; none where they are too few to name it."""
    if grown is None or not grown.is_enough:
        return {}
    return case.take((Part.EMPTY, Part.ENQUEUE), ("run",), grown.at_most_ns * case.scale)


def _usual_stays(case: Case, epochs: int) -> tuple[list[Stay], float]:
    """The same in the reference, and by what to multiply it for so many epochs."""
    process = case.process.process
    before: list[Stay] = []
    count = 0
    for window in case.baselines:
        usual = case.evidence.epochs(window, process)
        before += stays(case.evidence, process, window, host_spans(usual), RUN)
        count += len(usual)
    return before, epochs / max(count, 1)
