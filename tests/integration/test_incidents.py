"""A part of the labeled runs of bench/incidents, each recorded, diagnosed and judged as the bench does it."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from bench.incidents.ambient import favored
from bench.incidents.findings import ask
from bench.incidents.judge import UNSCORED, Judgement, Verdict, judge
from bench.incidents.plan import all_scenarios
from bench.incidents.price import Price
from bench.incidents.recording import DATABASE, record
from bench.incidents.scenario import Planned, Scenario, Schedule
from bench.incidents.workload import missing
from ingero.demo.faults import cgroups
from ingero.diagnose.causes.rule import all_rules

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler for the simulated GPU"),
]

ROUNDS = 3  # others on the machine may spoil a recording
SECONDS = 9.0  # of a recording in CI
MOST_WRONG = 1  # of those that nobody spoiled; how often a diagnosis is right at all is what the bench counts
FAST = [one for one in all_scenarios() if one.is_fast]
# Of each family of causes one (data, interpreter, device), and nothing; `make test-incidents`: all. Of the CPU there is
# the harder one, below, while launches are not traced.
IN_CI = {"slow_worker-50-block", "gil_hog-50-block", "gpu_throttle-50-block", "alone-train-block"}
CASES = [pytest.param(one, id=one.name, marks=() if one.name in IN_CI else pytest.mark.further) for one in FAST]
RULES = {rule.cause for rule in all_rules()}


@pytest.mark.parametrize("scenario", CASES)
def test_the_diagnosis_is_right(scenario: Scenario, tmp_path: Path) -> None:
    if reason := missing(scenario):
        pytest.skip(reason)
    assert_is_right(Planned(scenario=shortened(scenario) if scenario.name in IN_CI else scenario, seed=1), tmp_path)


def assert_is_right(planned: Planned, kept: Path) -> None:
    """In a recording that nobody spoiled; one of them may be wrong."""
    wrong = []
    for number in range(ROUNDS):
        folder = kept / str(number)
        with nullcontext() if cgroups.missing("cpu") else favored():
            label = record(planned, folder)
        answer = ask(planned.folder(folder) / DATABASE)
        # without a pair the dose is the one that was set
        judgement = judge(planned.scenario, label, None, answer.found, planned.price)
        if is_good(judgement):
            return
        if not label.is_disturbed:
            wrong.append(f"{judgement.parts}, found {[one.summary for one in answer.found]}")
            assert len(wrong) <= MOST_WRONG, "\n".join(wrong)
    spoiled = ROUNDS - len(wrong)
    pytest.skip(f"other load on this machine took {label.others:.0%} of the CPUs in {spoiled} of {ROUNDS} recordings")


def test_the_diagnosis_is_right_while_launches_are_not_traced(tmp_path: Path) -> None:
    """Who took the CPU, where nothing is known of launches from the first second on."""
    (scenario,) = (one for one in FAST if one.name == "cpu_hog-50-spin")
    planned = Planned(scenario=shortened(scenario), seed=1, price=Price.NO_LAUNCHES)
    assert_is_right(planned, tmp_path)


def test_the_runs_of_ci_are_planned() -> None:
    assert {one.name for one in FAST} > IN_CI


def shortened(scenario: Scenario) -> Scenario:
    """Nine seconds of thirteen: enough for half of the time lost, as long disturbed as undisturbed before."""
    before_s, after_s = min(scenario.schedule.before_s, 4.0), min(scenario.schedule.after_s, 1.0)
    return replace(scenario, schedule=Schedule(before_s=before_s, with_s=SECONDS - before_s - after_s, after_s=after_s))


def is_good(judgement: Judgement) -> bool:
    """Right; where there is no rule for the cause, not wrong."""
    if not judgement.parts:
        return judgement.is_right
    known = [part for part in judgement.parts if RULES & set(part.cause.split("|"))]
    return not judgement.wrong and all(part.verdict in {Verdict.RIGHT, *UNSCORED} for part in known)
