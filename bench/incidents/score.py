"""From single judgements to the table, the totals, and whether they are good enough."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.incidents.judge import MUST_BE_NAMED, UNSCORED, Judgement, Part, Verdict
from bench.incidents.scenario import Scenario
from bench.incidents.step_score import StepScore

# The project's own bars, written down before the first scored run.
CAUSE_RIGHT = 0.97
EVERY_CAUSE_RIGHT = 0.90  # at doses from STRONG on
STRONG = 0.10
CULPRIT_RIGHT = 0.97
LINE_RIGHT = 0.99
LOCATED = 0.95
ONE_INCIDENT = 0.97
LOSS_ERROR = 0.15  # median
DELAY_S = 2.0
WRONG_CAUSES = 0.01
STEPS_EXACT = 0.99  # of the runs whose program has steps
SCORED_RUNS = 600
QUIET_RUNS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One run and its judgement."""

    scenario: Scenario
    judgement: Judgement
    is_disturbed: bool
    steps: StepScore | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """One promise: its figure, its bar, and whether it is kept (None: nothing to judge by)."""

    promise: str
    figure: str
    is_kept: bool | None


def table(runs: Iterable[Scored]) -> list[tuple[str, ...]]:
    """A row for each cause, the head first."""
    rows: list[tuple[str, ...]] = [
        (
            "cause",
            "right",
            "wrong",
            "abstained",
            "quiet",
            "early",
            "not evaluated",
            "culprit",
            "line",
            "loss error",
            "delay",
            "one incident",
        )
    ]
    parts: dict[str, list[tuple[Part, Judgement]]] = defaultdict(list)
    for run in runs:
        for part in run.judgement.parts:
            parts[part.cause].append((part, run.judgement))
    for cause, mine in sorted(parts.items()):
        count = [sum(part.verdict is verdict for part, _ in mine) for verdict in Verdict]
        rows.append((cause, *map(str, count), *_figures([part for part, _ in mine]), _one_incident(mine)))
    return rows


def confusions(runs: Iterable[Scored]) -> list[tuple[int, str, str]]:
    """False causes by scenario: (count, the scenario's kinds, the wrong cause)."""
    seen = Counter(
        ("+".join(_kinds(run)) or run.scenario.name, cause)
        for run in runs
        if not run.is_disturbed
        for cause in run.judgement.wrong
    )
    return [(count, kinds, cause) for (kinds, cause), count in seen.most_common()]


def distinguished(runs: Sequence[Scored], pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str, int, int]]:
    """For each pair of kinds: the number of runs without a wrong cause, and the number of runs."""
    rows = []
    for first, second in pairs:
        mine = [run for run in runs if not run.is_disturbed and _kinds(run) in {(first,), (second,)}]
        rows.append((first, second, sum(not run.judgement.wrong for run in mine), len(mine)))
    return rows


def _kinds(run: Scored) -> tuple[str, ...]:
    return () if run.scenario.is_control else tuple(one.kind for one in run.scenario.disturbances)


def totals(runs: Sequence[Scored]) -> list[Total]:
    """All promises, over runs on an otherwise idle host."""
    own = [run for run in runs if not run.is_disturbed]
    faults = [run for run in own if run.scenario.expected]
    quiet = [run for run in own if not run.scenario.expected]
    parts = [part for run in faults for part in run.judgement.parts if part.verdict not in UNSCORED]
    named = [run for run in faults if any(part.verdict is Verdict.RIGHT for part in run.judgement.parts)]
    false = sum(len(run.judgement.wrong) + run.judgement.unexplained for run in quiet)
    live_false = [len(run.judgement.live_false) for run in quiet if run.judgement.live_false is not None]
    live_wrong = [bool(run.judgement.live_wrong) for run in faults if run.judgement.live_wrong is not None]
    wrong = sum(bool(run.judgement.wrong) for run in own)
    single = [run.judgement.incidents == len(run.scenario.expected) for run in named]
    return [
        Total(promise=f"scored runs (>= {SCORED_RUNS})", figure=str(len(faults)), is_kept=len(faults) >= SCORED_RUNS),
        _share("cause right", [part.verdict is Verdict.RIGHT for part in parts], CAUSE_RIGHT),
        _worst_cause(faults),
        _share("culprit right", [p.culprit_right for p in parts if p.culprit_right is not None], CULPRIT_RIGHT),
        _share("Python line right", [p.line_right for p in parts if p.line_right is not None], LINE_RIGHT),
        _share("incidents with a Where line", [one for run in own for one in run.judgement.located or ()], LOCATED),
        _share("as many incidents as faults", single, ONE_INCIDENT),
        _median("loss error", [abs(p.loss_error) for p in parts if p.loss_error is not None], LOSS_ERROR),
        _median("live delay of losses >= 5%, s", _delays(faults), DELAY_S, worst=True),
        _share("runs with exactly the program's steps", _exact(own), STEPS_EXACT),
        Total(
            promise=f"runs with a wrong cause (<= {WRONG_CAUSES:.0%})",
            figure=f"{wrong} of {len(own)}",
            is_kept=wrong <= WRONG_CAUSES * len(own) if own else None,
        ),
        Total(promise=f"quiet runs (>= {QUIET_RUNS})", figure=str(len(quiet)), is_kept=len(quiet) >= QUIET_RUNS),
        Total(promise="findings in quiet runs (0)", figure=str(false), is_kept=false == 0 if quiet else None),
        Total(
            promise="told in quiet runs while they ran (0)",
            figure=f"{sum(live_false)} in {len(live_false)} runs",
            is_kept=not any(live_false) if live_false else None,
        ),
        Total(
            promise=f"faults with a wrong cause told while they ran (<= {WRONG_CAUSES:.0%})",
            figure=f"{sum(live_wrong)} in {len(live_wrong)} runs",
            is_kept=sum(live_wrong) <= WRONG_CAUSES * len(live_wrong) if live_wrong else None,
        ),
    ]


def _exact(runs: Iterable[Scored]) -> list[bool]:
    """Of each run of a program with steps; empty as long as no recording has any."""
    scored = [run.steps for run in runs if run.steps is not None]
    return [steps.is_exact for steps in scored] if any(steps.found for steps in scored) else []


def _delays(faults: Iterable[Scored]) -> list[float]:
    """Of what had to be told: a loss that came to less in the end may be silent, and is no worse for being told."""
    return [
        part.delay_s
        for run in faults
        if (run.judgement.dose or 0) >= MUST_BE_NAMED
        for part in run.judgement.parts
        if part.delay_s is not None and part.verdict not in UNSCORED
    ]


def _figures(parts: list[Part]) -> tuple[str, str, str, str]:
    errors = [part.loss_error for part in parts if part.loss_error is not None]
    delays = [part.delay_s for part in parts if part.delay_s is not None]
    return (
        _of([part.culprit_right for part in parts]),
        _of([part.line_right for part in parts]),
        f"{statistics.median(errors):+.0%}" if errors else "n/a",
        f"{max(delays):.1f} s" if delays else "n/a",
    )


def _of(answers: Iterable[bool | None]) -> str:
    asked = [one for one in answers if one is not None]
    return f"{sum(asked)}/{len(asked)}" if asked else "n/a"


def _one_incident(mine: Sequence[tuple[Part, Judgement]]) -> str:
    named = [judgement for part, judgement in mine if part.verdict is Verdict.RIGHT]
    return _of([judgement.incidents == len(judgement.parts) for judgement in named])


def _share(promise: str, answers: Sequence[bool], bar: float) -> Total:
    if not answers:
        return Total(promise=f"{promise} (>= {bar:.0%})", figure="n/a", is_kept=None)
    share = sum(answers) / len(answers)
    return Total(
        promise=f"{promise} (>= {bar:.0%})",
        figure=f"{share:.1%} ({sum(answers)} of {len(answers)})",
        is_kept=share >= bar,
    )


def _median(promise: str, values: Sequence[float], bar: float, *, worst: bool = False) -> Total:
    if not values:
        return Total(promise=f"{promise} (<= {bar:g})", figure="n/a", is_kept=None)
    value = max(values) if worst else statistics.median(values)
    return Total(promise=f"{promise} (<= {bar:g})", figure=f"{value:.2f}", is_kept=value <= bar)


def _worst_cause(faults: Iterable[Scored]) -> Total:
    strong: dict[str, list[bool]] = defaultdict(list)
    for run in faults:
        if run.judgement.dose is None or run.judgement.dose >= max(STRONG, MUST_BE_NAMED):
            for part in run.judgement.parts:
                if part.verdict not in UNSCORED:
                    strong[part.cause].append(part.verdict is Verdict.RIGHT)
    promise = f"worst cause at doses >= {STRONG:.0%} (>= {EVERY_CAUSE_RIGHT:.0%})"
    if not strong:
        return Total(promise=promise, figure="n/a", is_kept=None)
    cause, answers = min(strong.items(), key=lambda item: sum(item[1]) / len(item[1]))
    share = sum(answers) / len(answers)
    return Total(promise=promise, figure=f"{share:.0%} {cause}", is_kept=share >= EVERY_CAUSE_RIGHT)
