"""On-CPU time outside calls on the path to the device, by what it was for, against the reference."""

from __future__ import annotations

from collections.abc import Mapping

from ingero.diagnose.cases import Case
from ingero.diagnose.model import Bucket, Part
from ingero.diagnose.places import RUN, Doing, Spent, Stay, host_spans, spent, stays


def run_growth(case: Case) -> Mapping[Doing, Spent]:
    """On-CPU time outside calls on the path of the epochs that lost, beyond the reference, by what it was for."""
    process = case.process.process
    lossy = case.epochs[case.excess_ns > 0]
    now = stays(case.evidence, process, case.window, host_spans(lossy), RUN)
    before, scale = _usual_stays(case, len(lossy))
    found = {}
    for doing in Doing:
        mine = spent([one for one in now if one.doing is doing])
        grown = mine.ns - scale * sum(one.ns for one in before if one.doing is doing)
        if grown > 0:
            found[doing] = Spent(ns=grown, count=round(mine.count * grown / mine.ns), line=mine.line)
    return found


def claim_run(case: Case, grown: Spent | None) -> dict[Bucket, int]:
    """Lost time that the samples account for, of what is left of it; none where they are too few to name it."""
    if grown is None or not grown.is_enough:
        return {}
    return case.take((Part.EMPTY, Part.ENQUEUE), ("run",), grown.at_most_ns)


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
