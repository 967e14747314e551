"""One sentence about each profiled process, and which causes a profile cannot show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import numpy as np

from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.recorded import GPU_ACTIVITIES
from ingero.diagnose.findings import NotEvaluated, ProcessVerdict
from ingero.diagnose.profile.pacing import TEXTS
from ingero.diagnose.profile.report import ProfileReport, Profiles
from ingero.diagnose.profile.steps import MIN_STEPS, StepUse
from ingero.diagnose.profile.words import BLOCKED_TEXTS, IDLE_NAMES, NOT_IN_A_PROFILE, percent
from ingero.units import format_count, format_counted, format_ns

_MIN_IDLE_RATIO = 0.10  # of the judged time: from here on the verdict says what most GPU idle time was spent on
_MIN_BLOCKED_RATIO = 0.05  # of wall time: from here on the verdict names the kind of call that blocked most
_HOW_FOUND = {"repetition": "by repetition", "sync": "by syncs", "both": "by repetition", "user": "as marked"}


def profile_verdicts(found: Profiles, with_incidents: Collection[int]) -> Iterator[ProcessVerdict]:
    """One verdict for each profiled process. with_incidents: numbers of the processes with incidents."""
    for report in found.reports:
        process = report.process
        has_incident = process.process in with_incidents
        text = verdict_text(report) + ("; see incidents above" if has_incident else "")
        yield ProcessVerdict(
            process=process.process,
            pid=process.pid,
            name=process.name,
            text=text,
            has_incident=has_incident,
            rank=process.rank,
        )


def verdict_text(report: ProfileReport) -> str:
    """A process's steps, what paces them, how busy the GPU was, and the calls in which the host waited."""
    parts = [steps_text(report)]
    time_base = "of the steps" if len(report.steps) >= MIN_STEPS else "of the time covered"
    busy = f"GPU busy {percent(report.judged_busy_ratio)} {time_base} (measured by the profiler)"
    parts.append(f"{TEXTS[report.paced_by]}: {busy}")
    most = max(report.idle, key=lambda share: share.idle_ns)
    if most.ratio >= _MIN_IDLE_RATIO:
        parts.append(f"most GPU idle time: {IDLE_NAMES[most.owner]}, {percent(most.ratio)}")
    kind = max(report.blocked, key=lambda name: report.blocked[name])
    if report.blocked[kind] >= _MIN_BLOCKED_RATIO:
        parts.append(f"blocked {percent(report.blocked[kind])} of wall time {BLOCKED_TEXTS[kind]}")
    return "; ".join(parts)


def steps_text(report: ProfileReport) -> str:
    """How many steps there are and how long, how they were found, and what the program's own marks say."""
    mine = main_steps(report.steps)
    if not mine:
        return f"no steps found{_marks(report)}"
    lasted = format_ns(float(np.median([step.step_ns for step in mine])))
    launches = f": {format_count(mine[0].launches)} launches each" if len({step.launches for step in mine}) == 1 else ""
    others = len(report.steps) - len(mine)
    also = f" and {format_counted(others, 'step')} of other types" if others else ""
    how = _HOW_FOUND.get(mine[0].how, mine[0].how)
    return f"{format_counted(len(mine), 'step')} of {lasted} ({how}{launches}{_marks(report)}){also}"


def main_steps(steps: Collection[StepUse]) -> list[StepUse]:
    """The steps of the type that took most of the time."""
    time_by_type: Counter[str] = Counter()
    for step in steps:
        time_by_type[step.step_type] += step.step_ns
    main = max(time_by_type, key=lambda name: time_by_type[name], default="")
    return [step for step in steps if step.step_type == main]


def _marks(report: ProfileReport) -> str:
    if not report.marks.count or {step.how for step in report.steps} == {"user"}:
        return ""
    if report.marks.count == len(report.steps):
        return "; the program's own marks agree"
    return f"; the program marked {format_count(report.marks.count)}"


def not_in_a_profile(rules: Iterable[Rule]) -> list[NotEvaluated]:
    """Causes that no rule can find in a profile, because what they need is in no profile."""
    rules = list(rules)
    measured = {rule.cause for rule in rules if GPU_ACTIVITIES in rule.needs}
    causes = dict.fromkeys(rule.cause for rule in rules if rule.cause not in measured)
    return [NotEvaluated(cause=cause, reason=NOT_IN_A_PROFILE) for cause in causes]
