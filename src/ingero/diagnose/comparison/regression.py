"""Regression check for CI: whether the second of two recordings is worse than the first by more than a limit.

It judges the time for the same work and the share of wall time lost, each only beyond the comparison's noise. An
undecided result is reported as such and is never a pass.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ingero.diagnose.comparison.change_verdict import MIN_CHANGE, NOISE_FACTOR, Verdict
from ingero.diagnose.comparison.compare import Comparison
from ingero.units import format_percent


class Outcome(enum.Enum):
    """The outcome of a regression check.

    UNDECIDED: over the limit, but not beyond noise. NOT_COMPARABLE: the recordings have no work in common to compare.
    """

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"
    NOT_COMPARABLE = "not_comparable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """The answer to `--max-regression`. text: one line.

    limit_ratio: the allowed change of either figure. change_ratio: of the time for the same work, worse is above 0;
    uncertainty_ratio: changes up to this are not distinguished from noise. None where the two cannot be compared.
    lost_change_ratio: difference of the shares of wall time lost; None where one side does not know it.
    """

    outcome: Outcome
    limit_ratio: float
    change_ratio: float | None
    uncertainty_ratio: float | None
    lost_change_ratio: float | None
    text: str


def regression_of(found: Comparison, limit_ratio: float) -> Regression:
    """Judges a comparison. limit_ratio: 0.05 allows 5% more time for the same work, and 5 points more time lost."""
    time, lost = _time_outcome(found, limit_ratio), _lost_time_outcome(found, limit_ratio)
    uncertainty = None if found.noise_ratio is None else max(MIN_CHANGE, NOISE_FACTOR * found.noise_ratio)
    outcome = next(
        one
        for one in (Outcome.FAILED, Outcome.NOT_COMPARABLE, Outcome.UNDECIDED, Outcome.PASSED)
        if one in (time, lost)
    )
    return Regression(
        outcome=outcome,
        limit_ratio=limit_ratio,
        change_ratio=found.change_ratio,
        uncertainty_ratio=uncertainty,
        lost_change_ratio=found.lost_change_ratio,
        text=_text(found, outcome, limit_ratio, uncertainty),
    )


def _time_outcome(found: Comparison, limit_ratio: float) -> Outcome:
    if found.change_ratio is None or found.noise_ratio is None:
        return Outcome.NOT_COMPARABLE
    if found.change_ratio <= limit_ratio:
        return Outcome.PASSED
    return Outcome.FAILED if found.verdict is Verdict.WORSE else Outcome.UNDECIDED


def _lost_time_outcome(found: Comparison, limit_ratio: float) -> Outcome:
    change = found.lost_change_ratio
    if change is None:
        return Outcome.NOT_COMPARABLE
    if change <= limit_ratio:
        return Outcome.PASSED
    return Outcome.FAILED if change > MIN_CHANGE else Outcome.UNDECIDED


def _text(found: Comparison, outcome: Outcome, limit_ratio: float, uncertainty: float | None) -> str:
    limit = f"limit {_percent(limit_ratio)}"
    measured = ", ".join(_measured(found, uncertainty))
    new = [cause.cause for cause in found.causes if cause.verdict is Verdict.NEW and not cause.after_lost_ratio]
    also = f". Not judged, because it has no share of time lost: new {', '.join(new)}" if new else ""
    if outcome is Outcome.NOT_COMPARABLE:
        return (
            f"NOT COMPARABLE: the recordings have no step type in common that both saw often enough ({limit})"
            f"{f'; {measured}' if measured else ''}{also}"
        )
    if outcome is Outcome.FAILED:
        return f"REGRESSION: {measured} ({limit}){also}"
    if outcome is Outcome.UNDECIDED:
        return f"UNDECIDED: over the limit, but not beyond noise: {measured} ({limit}); record longer{also}"
    return f"OK: {measured} ({limit}){also}"


def _measured(found: Comparison, uncertainty: float | None) -> list[str]:
    parts = []
    if found.change_ratio is not None and uncertainty is not None:
        parts.append(f"{100 * found.change_ratio:+.1f}% time for the same work (noise up to {_percent(uncertainty)})")
    if found.lost_change_ratio is not None:
        points = f"{100 * found.lost_change_ratio:+.1f} points"
        parts.append(f"{points} of wall time lost (noise up to {_percent(MIN_CHANGE)})")
    return parts


def _percent(ratio: float) -> str:
    return format_percent(ratio).replace(" %", "%")
