"""What `explain` prints of a diagnosis stays readable however much was found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import Affected, Diagnosis, FindingKind, Incident, ProcessVerdict
from ingero.serve.text.findings_text import verdict_lines
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, diagnosed


def hogged(run: ScriptedRun, trainer: Actor) -> None:
    """CPU hogs take 3 ms of each step."""
    run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=3, sync={"runq": 3}))
    for second in range(int(QUIET_S), int(LENGTH_S)):
        run.culprit(trainer, 900, "stress-ng", second, 300, switches=100)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    diagnosis = diagnosed(Path(tmp_path_factory.mktemp("hogged")), hogged)
    assert diagnosis.incidents
    return diagnosis


def of(one: Incident, name: str, number: int, **changes: object) -> Incident:
    affected = replace(one.affected[0], name=name, pid=1000 + number) if one.affected else None
    affected: tuple[Affected, ...] = (affected,) if affected else ()
    return replace(one, number=number, affected=affected, **changes)


def lines(diagnosis: Diagnosis, incidents: list[Incident]) -> list[str]:
    return list(verdict_lines(replace(diagnosis, incidents=tuple(incidents))))


def test_of_hundreds_alike_some_are_shown_and_the_rest_is_counted(found: Diagnosis) -> None:
    first = found.incidents[0]
    alike = [of(first, "job", number, lost_ns=(300 - number) * 10**6) for number in range(1, 201)]
    told = lines(found, [*alike, of(first, "server", 201)])
    assert sum(f"[{first.kind.value} " in line for line in told) == 5
    more = [line for line in told if "more like this" in line]
    assert len(more) == 1
    assert f"and 196 more like this: {first.cause} of job, up to 295 ms lost each" in more[0]
    assert any("[incident 201]" in line for line in told), "another program's is not behind them"


def test_other_causes_and_kinds_are_no_more_of_the_same(found: Diagnosis) -> None:
    first = found.incidents[0]
    kinds = [of(first, "job", number, kind=FindingKind.BOTTLENECK) for number in range(4)]
    causes = [of(first, "job", number, cause="other") for number in range(4)]
    assert not any("more like this" in line for line in lines(found, [*kinds, *causes, first]))


def test_of_very_many_processes_those_with_an_incident_are_named(found: Diagnosis) -> None:
    verdicts = [
        ProcessVerdict(process=number, pid=number, name="job", text="fine", has_incident=number == 299)
        for number in range(300)
    ]
    told = list(verdict_lines(replace(found, incidents=(), verdicts=tuple(verdicts))))
    assert sum(line.endswith(": fine") for line in told) == 40
    assert "job [299]: fine" in told
    assert "and 260 more processes (--json lists all)" in told
