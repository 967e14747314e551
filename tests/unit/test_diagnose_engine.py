"""A rule that fails costs only itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ingero.diagnose.cases import Case
from ingero.diagnose.engine import FAILED, diagnose_evidence
from ingero.diagnose.evidence import Evidence
from ingero.diagnose.model import UNEXPLAINED, Finding
from ingero.diagnose.rule import Rule, all_rules
from ingero.store.reader import open_reader
from tests.unit.rules.golden import diagnosed
from tests.unit.rules.test_cpu_contention import hogged


def broken(case: Case) -> Iterator[Finding]:
    """A rule with a mistake."""
    yield Finding(cause="gil", summary=str({}[case.process.pid]))


def but_one(rules: tuple[Rule, ...]) -> Iterator[Rule]:
    """The rules, one of them broken."""
    for rule in rules:
        yield replace(rule, find=broken) if rule.cause == "gil" else rule


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
    assert incident.summary.endswith("it may be what this recording cannot show (culprits not traced: switched off)")
    assert incident.evidence["not traced"] == "culprits not traced: switched off"
