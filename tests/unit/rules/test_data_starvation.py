"""data-starvation: what the worker did that the device waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, Scene, Step
from tests.unit.rules.golden import LENGTH_S, QUIET_S, causes, diagnosed


def starved(scene: Scene, trainer: Actor, waker: str) -> None:
    """20 ms asleep before each step; the worker ends it after having slept 18 ms itself."""
    worker = scene.process(101, "pt_data_worker", parent=trainer)
    for begin, first, _ in scene.train(trainer, QUIET_S, LENGTH_S, Step(empty_ms=20.5, empty={"sleep": 20})):
        scene.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=worker)
        state = "io" if waker == "block" else "sleep"
        scene.off_cpu(worker, begin + 0.001, begin + 0.019, state, waker=waker)  # type: ignore[arg-type]
        assert begin + 0.020 <= first


@pytest.mark.parametrize(("waker", "doing"), [("timer", "asleep"), ("block", "disk"), ("network", "network")])
def test_what_the_worker_did_is_said(tmp_path: Path, waker: str, doing: str) -> None:
    diagnosis = diagnosed(tmp_path, lambda scene, trainer: starved(scene, trainer, waker))
    assert causes(diagnosis) == ["data-starvation"]
    incident = diagnosis.incidents[0]
    assert incident.evidence["worker was"] == doing
    assert incident.culprits[0].pid == 101
    assert incident.lost_ratio == pytest.approx(20 / 26.55, rel=0.03)


def test_a_request_that_did_not_come_is_no_starvation(tmp_path: Path) -> None:
    def idle(scene: Scene, trainer: Actor) -> None:
        for begin, _first, _ in scene.train(trainer, QUIET_S, LENGTH_S, Step(empty_ms=20.5, empty={"sleep": 20})):
            scene.off_cpu(trainer, begin, begin + 0.020, "sleep", waker="network")

    assert causes(diagnosed(tmp_path, idle)) == []


def test_without_intervals_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _scene, _trainer: None, not_traced={"offcpu": "--offcpu=false"})
    assert "data-starvation" in {one.cause for one in diagnosis.not_evaluated}
