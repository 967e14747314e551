"""Blind spots of a recording: causes whose evidence was not recorded, or not traced all of the time.

Evidence that the overhead limiter gave up for a while makes its causes undetectable for that while.
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

IN_PART = "in part: "  # prefix of a reason
_MAX_MISSING_RATIO = 0.25  # of a case's time: with less of its evidence missing a rule judges by the rest
_MAX_MISSING_BASELINE_RATIO = 0.05  # of the baseline's time: what is missing there looks as if it had grown since
_GPU_NEEDS = frozenset({ENQUEUES, "GPU", "gpu_samples", "NCCL", "communicators"})


def blind_spots(evidence: Evidence, rules: Iterable[Rule]) -> Iterator[NotEvaluated]:
    """Causes whose evidence, or a part of it, is not in the recording, or not in all of it.

    Where several rules name one cause, only the first of them counts: the others stand in where it cannot judge.
    """
    checked = [rule for rule in rules if GPU_ACTIVITIES not in rule.needs]  # profiles: see `not_in_a_profile`
    first = {rule.cause: rule for rule in sorted(checked, key=lambda rule: -rule.order)}
    for rule in (rule for rule in checked if first[rule.cause] is rule):
        if reason := evidence.why_unavailable(rule.needs):
            yield NotEvaluated(cause=rule.cause, reason=reason)
            continue
        which_gpu = WHICH_GPU in rule.improves_with and unknown_gpus(evidence)
        if reason := which_gpu or evidence.why_unavailable(rule.improves_with):
            yield NotEvaluated(cause=rule.cause, reason=f"{IN_PART}{reason}")
        for reason in dict.fromkeys(evidence.unseen((*rule.needs, *rule.improves_with))):
            yield NotEvaluated(cause=rule.cause, reason=f"{IN_PART}{reason}")
        needed = evidence.gaps.of(rule.needs)
        for text, windows in needed.items():
            yield NotEvaluated(cause=rule.cause, reason=text, time_ranges=windows)
        for text, windows in evidence.gaps.of(rule.improves_with).items():
            if text not in needed:
                yield NotEvaluated(cause=rule.cause, reason=f"{IN_PART}{text}", time_ranges=windows)


def can_see(rule: Rule, case: Case) -> bool:
    """Whether a rule's needs, except sync intervals, were traced in a case and in its baselines."""
    return was_traced(case, set(rule.needs) - {SYNC_INTERVALS})


def was_traced(case: Case, names: Iterable[str]) -> bool:
    """Whether evidence of these names was traced in a case and in its baselines."""
    gaps, before, names = case.evidence.gaps, case.baseline_windows, frozenset(names)
    baseline_ns = sum(window.duration_ns for window in before)
    is_missing_now = gaps.missing_ns(names, (case.window,)) > _MAX_MISSING_RATIO * case.window.duration_ns
    was_missing_before = gaps.missing_ns(names, before) > _MAX_MISSING_BASELINE_RATIO * baseline_ns
    return not is_missing_now and not was_missing_before


def drop_reported_blind_spots(spots: Iterable[NotEvaluated], incidents: Iterable[Incident]) -> list[NotEvaluated]:
    """The blind spots without the causes that were found; those with time ranges that were not checked stay."""
    found = {incident.cause for incident in incidents}
    return [spot for spot in spots if spot.time_ranges or spot.cause not in found]


def why_not_evaluated(
    evidence: Evidence, rules: Iterable[Rule], part: Part, windows: Iterable[Window] = ()
) -> list[str]:
    """Why causes that could own lost time of this part were not evaluated in these windows, each reason once."""
    windows = tuple(windows)
    is_device = part is Part.GPU
    reasons: dict[str, None] = {}
    for rule in rules:
        names = (*rule.needs, *rule.improves_with)
        if not rule.explain or bool(_GPU_NEEDS & set(names)) is not is_device:
            continue
        if reason := evidence.why_unavailable(names):
            reasons[reason] = None
        for text, time_ranges in evidence.gaps.of(names).items():
            if overlap_ns(time_ranges, windows):
                reasons[text] = None
    return list(reasons)
