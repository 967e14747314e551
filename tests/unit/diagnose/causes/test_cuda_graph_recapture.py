"""cuda-graph-recapture: captures in the middle of the run; the first ones, and those that cost nothing, are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import UNEXPLAINED, FindingKind
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file

COST_MS = 5.0


def captured(run: ScriptedRun, trainer: Actor, at_s: float, stack: int = 0) -> None:
    """3 ms of captured launches, then the instantiation: COST_MS in all."""
    run.call(trainer, "cudaStreamBeginCapture", at_s, 0.01, stack_hash=stack)
    run.call(trainer, "cudaStreamEndCapture", at_s + 0.0029, 0.1)
    run.call(trainer, "cudaGraphInstantiate", at_s + 0.003, 2.0)


def recapturing(run: ScriptedRun, trainer: Actor) -> None:
    step = Step(idle_ms=0.5 + COST_MS, idle={"run": 0.5 + COST_MS})
    calls = {"cudaGraphLaunch": (1.0, 0.02), "cudaStreamEndCapture": (1.0, 0.1), "cudaGraphInstantiate": (1.0, 2.0)}
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, step, calls=calls):
        captured(run, trainer, begin, run.stack([("/srv/train.py", 42, "step")]))


def test_a_capture_in_each_step_is_charged_with_all_of_its_time(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, recapturing)
    assert causes(diagnosis) == ["cuda-graph-recapture"]
    incident = diagnosis.incidents[0]
    assert incident.lost_ratio == pytest.approx(COST_MS / (6.55 + COST_MS), rel=0.03)
    assert incident.line is not None
    assert incident.line.line == 42


def test_captures_off_the_path_to_the_device_cost_nothing(tmp_path: Path) -> None:
    def hidden(run: ScriptedRun, trainer: Actor) -> None:
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step()):
            captured(run, trainer, begin)

    assert causes(diagnosed(tmp_path, hidden)) == []


def test_one_capture_does_not_own_what_else_was_lost(tmp_path: Path) -> None:
    def once(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=3.5, idle={"run": 3.5}))
        captured(run, trainer, 8)

    assert "cuda-graph-recapture" not in causes(diagnosed(tmp_path, once))


def test_captures_in_an_incident_do_not_own_the_time_around_it(tmp_path: Path) -> None:
    """Python keeps the GPU waiting at all times; captures only for a while."""
    path = tmp_path / "scene.db"
    slow, slower = (Step(idle_ms=ms, idle={"run": ms}) for ms in (2.0, 2.0 + COST_MS))
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, 4, slow)
        for begin, _, _ in run.train(trainer, 4, 9, slower):
            captured(run, trainer, begin)
        run.train(trainer, 9, LENGTH_S, slow)
    found = {one.kind: one.cause for one in diagnosed_file(path).incidents}
    assert found == {FindingKind.INCIDENT: "cuda-graph-recapture", FindingKind.BOTTLENECK: UNEXPLAINED}


def test_without_exact_sums_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, recapturing, not_traced={"op_stats": "launches only counted"})
    assert "cuda-graph-recapture" in {one.cause for one in diagnosis.not_evaluated}
