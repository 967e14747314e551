"""What a recording cannot show: the causes that it silences, and what of that an unexplained loss may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingero.diagnose.evidence import Evidence
from ingero.diagnose.model import Incident, NotEvaluated, Part
from ingero.diagnose.rule import Rule

_OF_THE_DEVICE = frozenset({"GPU", "gpu_samples", "NCCL", "communicators"})


def blind_spots(evidence: Evidence, rules: Iterable[Rule]) -> Iterator[NotEvaluated]:
    """Causes whose evidence, or a part of it, is not in the recording."""
    for rule in rules:
        if reason := evidence.missing(rule.needs):
            yield NotEvaluated(cause=rule.cause, reason=reason)
        elif reason := evidence.missing(rule.wants):
            yield NotEvaluated(cause=rule.cause, reason=f"in part: {reason}")


def silent(spots: Iterable[NotEvaluated], incidents: Iterable[Incident]) -> list[NotEvaluated]:
    """Without the causes that were found: of those there is no silence."""
    found = {one.cause for one in incidents}
    return [one for one in spots if one.cause not in found]


def unseen(evidence: Evidence, rules: Iterable[Rule], part: Part) -> list[str]:
    """Why causes that could own lost time of this part were not evaluated, each reason once."""
    is_device = part is Part.DEVICE
    reasons: dict[str, None] = {}
    for rule in rules:
        names = {*rule.needs, *rule.wants}
        if (
            rule.find
            and bool(names & _OF_THE_DEVICE) is is_device
            and (reason := evidence.missing((*rule.needs, *rule.wants)))
        ):
            reasons[reason] = None
    return list(reasons)
