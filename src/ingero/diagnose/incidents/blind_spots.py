"""What a recording cannot show: the causes that it silences, and what of that an unexplained lost time may be.

What was given up for a while, because tracing had become too expensive, silences its causes for that while.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.coverage_gaps import overlap_ns
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.process_gpus import WHICH_GPU, unknown_gpus
from ingero.diagnose.evidence.recorded import ENQUEUES, GPU_ACTIVITIES, SYNC_INTERVALS
from ingero.diagnose.findings import Incident, NotEvaluated, Part
from ingero.store.records import Window

IN_PART = "in part: "  # begin of the reason
_MOST_MISSING = 0.25  # of a case: with less of its evidence a rule answers for the rest
_MOST_MISSING_BEFORE = 0.05  # of the references: what lacks there looks as if it had grown
_OF_THE_DEVICE = frozenset({ENQUEUES, "GPU", "gpu_samples", "NCCL", "communicators"})


def blind_spots(evidence: Evidence, rules: Iterable[Rule]) -> Iterator[NotEvaluated]:
    """Causes whose evidence, or a part of it, is not in the recording, or not in all of it.

    Of rules that name the same cause the first speaks: another one finds it where that cannot.
    """
    asked = [one for one in rules if GPU_ACTIVITIES not in one.needs]  # for profiles there is a word of its own
    first = {one.cause: one for one in sorted(asked, key=lambda one: -one.order)}
    for rule in (one for one in asked if first[one.cause] is one):
        if reason := evidence.missing(rule.needs):
            yield NotEvaluated(cause=rule.cause, reason=reason)
            continue
        if reason := (WHICH_GPU in rule.wants and unknown_gpus(evidence)) or evidence.missing(rule.wants):
            yield NotEvaluated(cause=rule.cause, reason=f"{IN_PART}{reason}")
        for reason in dict.fromkeys(evidence.unseen((*rule.needs, *rule.wants))):
            yield NotEvaluated(cause=rule.cause, reason=f"{IN_PART}{reason}")
        needed = evidence.gaps.of(rule.needs)
        for text, windows in needed.items():
            yield NotEvaluated(cause=rule.cause, reason=text, time_ranges=windows)
        for text, windows in evidence.gaps.of(rule.wants).items():
            if text not in needed:
                yield NotEvaluated(cause=rule.cause, reason=f"{IN_PART}{text}", time_ranges=windows)


def can_see(rule: Rule, case: Case) -> bool:
    """Whether what a rule needs was traced in a case and in its baselines; both are made of sync intervals."""
    return was_traced(case, set(rule.needs) - {SYNC_INTERVALS})


def was_traced(case: Case, names: Iterable[str]) -> bool:
    """Whether that was traced in a case, and in what that is compared with."""
    gaps, before, names = case.evidence.gaps, case.baselines, frozenset(names)
    lacks = gaps.missing_ns(names, (case.window,)) > _MOST_MISSING * case.window.duration_ns
    lacked = gaps.missing_ns(names, before) > _MOST_MISSING_BEFORE * sum(one.duration_ns for one in before)
    return not lacks and not lacked


def silent(spots: Iterable[NotEvaluated], incidents: Iterable[Incident]) -> list[NotEvaluated]:
    """Without the causes that were found: of those there is no silence, but for times that were not looked at."""
    found = {one.cause for one in incidents}
    return [one for one in spots if one.time_ranges or one.cause not in found]


def unseen(evidence: Evidence, rules: Iterable[Rule], part: Part, windows: Iterable[Window] = ()) -> list[str]:
    """Why causes that could own lost time of this part were not evaluated in these windows, each reason once."""
    windows = tuple(windows)
    is_device = part is Part.GPU
    reasons: dict[str, None] = {}
    for rule in rules:
        names = (*rule.needs, *rule.wants)
        if not rule.find or bool(_OF_THE_DEVICE & set(names)) is not is_device:
            continue
        if reason := evidence.missing(names):
            reasons[reason] = None
        for text, time_ranges in evidence.gaps.of(names).items():
            if overlap_ns(time_ranges, windows):
                reasons[text] = None
    return list(reasons)
