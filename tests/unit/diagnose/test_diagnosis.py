"""A rule that fails costs only itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.rule import Rule, all_rules
from ingero.diagnose.diagnosis import FAILED, diagnose_evidence
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import UNEXPLAINED, Finding
from ingero.store.reader import open_reader
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file
from tests.unit.diagnose.causes.test_cpu_contention import hogged


def broken(case: Case) -> Iterator[Finding]:
    """A rule with a mistake."""
    yield Finding(cause="gil", summary=str({}[case.process.pid]))


def but_one(rules: tuple[Rule, ...]) -> Iterator[Rule]:
    """The rules, one of them broken."""
    for rule in rules:
        yield replace(rule, explain=broken) if rule.cause == "gil" else rule


def test_the_other_rules_answer_and_the_failure_is_told(tmp_path: Path) -> None:
    whole = diagnosed(tmp_path, hogged)
    with open_reader(tmp_path / "scene.db") as reader:
        evidence = Evidence(reader, whole.window)
        diagnosis = diagnose_evidence(evidence, but_one(all_rules()))
    assert [one.cause for one in diagnosis.incidents] == ["cpu-contention"]
    assert [one.reason.startswith(FAILED) for one in diagnosis.not_evaluated if one.cause == "gil"] == [True]


def test_what_is_unexplained_names_what_was_not_traced_of_that_part(tmp_path: Path) -> None:
    missing = {"culprits": "switched off", "GPU": "NVML: no driver"}
    (incident,) = diagnosed(tmp_path, hogged, not_traced=missing).incidents
    assert incident.cause == UNEXPLAINED
    assert incident.summary.endswith("not recorded: culprits not traced: switched off")
    assert incident.evidence["not traced"] == "culprits not traced: switched off"


def test_each_cause_of_a_loss_is_weighed_against_that_loss_and_not_its_surroundings(tmp_path: Path) -> None:
    """A second that lost a little and two quiet ones go before three that lost 9%, by two causes: 3% of all six."""

    def two_causes(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, QUIET_S + 1, Step(idle_ms=0.85))
        run.train(trainer, QUIET_S + 1, QUIET_S + 3, Step())
        step = Step(idle_ms=1.15, idle={"sleep": 0.4, "runq": 0.25})
        for begin, _, end in run.train(trainer, QUIET_S + 3, LENGTH_S, step):
            run.off_cpu(trainer, begin, begin + 0.0004, "sleep", waker="timer")
            run.culprit(trainer, 900, "hog", int(end), 0.25)

    assert sorted(causes(diagnosed(tmp_path, two_causes))) == ["cpu-contention", "sleep-in-loop"]


def test_the_best_seconds_may_lie_within_an_incident(tmp_path: Path) -> None:
    """Hogs from the first second on, a little less of them for two: those are the reference, and slow as well."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for begin_s, end_s, hogged_ms in ((0, 5, 5.0), (5, 7, 4.0), (7, 12, 5.0)):
            for _, _, end in run.train(
                trainer, begin_s, end_s, Step(return_delay_ms=0.05 + hogged_ms, sync={"runq": hogged_ms})
            ):
                run.culprit(trainer, 900, "hog", int(end), hogged_ms)
    assert {one.cause for one in diagnosed_file(path).incidents} == {"cpu-contention"}


@pytest.mark.parametrize(("steal", "expected"), [(0.0, ["gpu-slower"]), (0.6, [])])
def test_what_was_stolen_makes_little_of_something_else_not_enough(
    tmp_path: Path, steal: float, expected: list[str]
) -> None:
    """Of 5% one cause of two is named; 2.5% beside 3% that were stolen are none."""

    def a_little(run: ScriptedRun, trainer: Actor) -> None:
        step = Step(busy_ms=6.2, return_delay_ms=0.24, sync={"runq": 0.19})
        for _, _, end in run.train(trainer, QUIET_S, LENGTH_S, step):
            run.culprit(trainer, 900, "hog", int(end), 0.19)
        run.cpus(0, int(QUIET_S), (0.2, 0.1))
        run.cpus(int(QUIET_S), int(LENGTH_S), (0.2, 0.1), steal=steal)

    assert causes(diagnosed(tmp_path, a_little)) == expected
