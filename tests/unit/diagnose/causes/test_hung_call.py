"""hung-call: a call open for seconds; a stop is none, and neither is a call that is always long."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import BEGIN_NS, Actor, ScriptedRun, Step
from ingero.diagnose.findings import Severity
from ingero.ops import OPS
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file


def hanging(run: ScriptedRun, trainer: Actor, since_s: float) -> None:
    """The sync that began at since_s is seen open until the end."""
    op = next(op for op in OPS if op.name == "cudaStreamSynchronize")
    for second in range(int(since_s) + 1, int(LENGTH_S)):
        run.append(
            tables.IN_FLIGHT,
            time_ns=run.at(second),
            process=trainer.number,
            pid=trainer.pid,
            tid=trainer.pid,
            source=int(op.source),
            op=op.code,
            since_ns=run.at(since_s),
        )


def test_a_sync_that_never_returned_is_critical(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: hanging(run, trainer, QUIET_S))
    assert causes(diagnosis) == ["hung-call"]
    assert diagnosis.incidents[0].severity is Severity.CRITICAL
    assert "cudaStreamSynchronize for 5.00 s" in diagnosis.incidents[0].summary


def test_a_sync_open_for_a_second_is_not_reported(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, trainer: hanging(run, trainer, LENGTH_S - 2))) == []


def test_a_sync_open_for_two_seconds_is_reported(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, trainer: hanging(run, trainer, LENGTH_S - 3))) == ["hung-call"]


def test_a_sync_that_hung_and_returned_is_no_slower_device(tmp_path: Path) -> None:
    def hung(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, QUIET_S + 0.001, Step(busy_ms=4000))
        run.train(trainer, QUIET_S + 4.01, LENGTH_S, Step())

    diagnosis = diagnosed(tmp_path, hung)
    assert causes(diagnosis) == ["hung-call"]
    assert diagnosis.incidents[0].lost_ns == pytest.approx(4e9, rel=0.02)
    assert diagnosis.incidents[0].severity is Severity.HIGH


def test_a_call_that_has_returned_is_not_critical_any_more(tmp_path: Path) -> None:
    """It is as bad as its share of the time: 3 s of 12."""

    def returned(run: ScriptedRun, trainer: Actor) -> None:
        run.open_call(trainer, "cudaStreamSynchronize", QUIET_S, QUIET_S + 3)
        run.train(trainer, QUIET_S + 3, LENGTH_S, Step())

    (incident,) = diagnosed(tmp_path, returned).incidents
    assert (incident.cause, incident.severity) == ("hung-call", Severity.HIGH)
    assert "was inside cudaStreamSynchronize for 3.00 s, then went on" in incident.summary


def test_a_call_in_which_its_process_was_killed_stays_critical(tmp_path: Path) -> None:
    def killed(run: ScriptedRun, trainer: Actor) -> None:
        run.open_call(trainer, "cudaStreamSynchronize", QUIET_S, QUIET_S + 4)

    diagnosis = diagnosed(tmp_path, killed, exit_ns=BEGIN_NS + int((QUIET_S + 4.5) * 1e9))
    assert [(one.cause, one.severity) for one in diagnosis.incidents] == [("hung-call", Severity.CRITICAL)]


def test_syncs_that_always_take_seconds_are_none(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for _, begin_s, end_s in run.train(trainer, 0, LENGTH_S, Step(busy_ms=5000, launch_ms=300)):
            run.open_call(trainer, "cudaStreamSynchronize", begin_s + 0.3, end_s)
    assert causes(diagnosed_file(path)) == []


def test_without_open_calls_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"in_flight": "no task iterator"})
    assert "hung-call" in {one.cause for one in diagnosis.not_evaluated}
