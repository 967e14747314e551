"""The score of each program, so that those that wait once a step and those that do not are seen apart."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from bench.incidents.judge import Verdict
from bench.incidents.score import Scored

ONCE_A_STEP = "waits once a step"
_HEAD = (
    "program", "faults", "right", "wrong", "abstained", "quiet", "culprit", "line", "quiet runs", "findings", "steps",
    "seen", "half", "double", "error", "p95",
)  # fmt: skip


def programs(runs: Iterable[Scored]) -> list[tuple[str, ...]]:
    """A row for each program over its runs that nobody disturbed, the head first."""
    by_program: dict[str, list[Scored]] = defaultdict(list)
    for run in runs:
        if not run.is_disturbed:
            by_program[run.scenario.program or ONCE_A_STEP].append(run)
    return [_HEAD, *((name, *_row(mine)) for name, mine in sorted(by_program.items()))]


def _row(runs: Sequence[Scored]) -> tuple[str, ...]:
    parts = [part for run in runs for part in run.judgement.parts]
    quiet = [run for run in runs if not run.scenario.expected]
    findings = sum(len(run.judgement.wrong) + run.judgement.unexplained for run in quiet)
    verdicts = (Verdict.RIGHT, Verdict.WRONG, Verdict.ABSTAINED)
    silent = sum(part.verdict not in verdicts for part in parts)
    return (
        str(sum(bool(run.scenario.expected) for run in runs)),
        *(str(sum(part.verdict is verdict for part in parts)) for verdict in verdicts),
        str(silent),
        _share(part.culprit_right for part in parts),
        _share(part.line_right for part in parts),
        str(len(quiet)),
        str(findings),
        *_steps(runs),
    )


def _steps(runs: Sequence[Scored]) -> tuple[str, ...]:
    """Exact runs, how many of the steps were found, wrong ones, and errors; a recording may have no step at all."""
    scored = [run.steps for run in runs if run.steps is not None]
    found = [steps for steps in scored if steps.found]
    if not found:
        return ("none recorded" if scored else "n/a", *("n/a",) * 5)
    without = len(scored) - len(found)
    return (
        f"{sum(steps.is_exact for steps in found)}/{len(found)}" + (f", {without} without" if without else ""),
        f"{sum(steps.found for steps in scored) / sum(steps.true for steps in scored):.0%}",
        str(sum(steps.half for steps in found)),
        str(sum(steps.double for steps in found)),
        _ms([steps.median_error_ms for steps in found if steps.median_error_ms is not None]),
        _ms([steps.p95_error_ms for steps in found if steps.p95_error_ms is not None]),
    )


def _ms(errors: Sequence[float]) -> str:
    return f"{statistics.median(errors):.2f} ms" if errors else "n/a"


def _share(answers: Iterable[bool | None]) -> str:
    asked = [answer for answer in answers if answer is not None]
    return f"{sum(asked)}/{len(asked)}" if asked else "n/a"
