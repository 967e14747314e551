"""A diagnosis as JSON holds everything that the diagnosis holds."""

import json
from dataclasses import fields
from pathlib import Path

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import Affected, Culprit, Diagnosis, Fix, Impact, Incident, Link
from ingero.serve.structured.findings_json import diagnosis_json
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, diagnosed


def hogged(run: ScriptedRun, trainer: Actor) -> None:
    """CPU hogs take 3 ms of each step."""
    run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=3, sync={"runq": 3}))
    for second in range(int(QUIET_S), int(LENGTH_S)):
        run.culprit(trainer, 900, "stress-ng", second, 300, switches=100)


def test_it_survives_a_round_through_text(tmp_path: Path) -> None:
    found = diagnosis_json(diagnosed(tmp_path, hogged))
    assert json.loads(json.dumps(found)) == found


def test_it_holds_every_field_of_what_was_found(tmp_path: Path) -> None:
    found = json.loads(json.dumps(diagnosis_json(diagnosed(tmp_path, hogged))))
    incident = found["incidents"][0]
    keys = {one.name.replace("not_evaluated", "not_checked") for one in fields(Diagnosis)}
    assert set(found) == keys | {"version"}
    names = {
        "summary": "headline", "affected": "affected", "chain": "evidence", "fixes": "fix", "breakdown": "breakdown",
        "evidence": "details",
    }  # fmt: skip
    within = {"line", "lost_ns", "lost_ratio", "explained_ratio", "peak_ratio"}  # of where, and of impact
    assert set(incident) == {names.get(one.name, one.name) for one in fields(Incident)} - within
    assert set(incident["impact"]) == {one.name for one in fields(Impact)} | within - {"line"}
    assert set(incident["affected"][0]) == {one.name for one in fields(Affected)}
    assert set(incident["fix"][0]) == {one.name for one in fields(Fix)}
    culprit = {one.name.replace("switches", "context_switches") for one in fields(Culprit)}
    assert set(incident["culprits"][0]) == culprit
    assert set(incident["evidence"][0]) == {one.name.replace("structure", "source") for one in fields(Link)}


def test_it_names_the_culprit_with_its_time(tmp_path: Path) -> None:
    incident = json.loads(json.dumps(diagnosis_json(diagnosed(tmp_path, hogged))))["incidents"][0]
    assert (incident["cause"], incident["culprits"][0]["pid"]) == ("cpu-contention", 900)
