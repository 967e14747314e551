"""cpu-steal: what a hypervisor took, second by second; what it cannot have made has another reason, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, Scene, Step
from ingero.diagnose.model import Diagnosis
from tests.unit.rules.golden import LENGTH_S, QUIET_S, causes, diagnosed

SLOW = Step(busy_ms=12)  # 6 of 12.55 ms more


def slower(scene: Scene, trainer: Actor, *, stolen: float, before: float = 0.0, step: Step = SLOW) -> None:
    """From QUIET_S on; so much of each CPU was stolen then, and before."""
    scene.train(trainer, QUIET_S, LENGTH_S, step)
    scene.cpus(0, int(QUIET_S), (0.2, 0.1), stolen=before)
    scene.cpus(int(QUIET_S), int(LENGTH_S), (0.2, 0.1), stolen=stolen)


def diagnosis(tmp_path: Path, stolen: float, before: float = 0.0, step: Step = SLOW) -> Diagnosis:
    return diagnosed(tmp_path, lambda scene, trainer: slower(scene, trainer, stolen=stolen, before=before, step=step))


@pytest.mark.parametrize("step", [SLOW, Step(empty_ms=6.3, empty={"run": 6.0})])
def test_time_lost_while_the_hypervisor_ran_others_is_stolen(tmp_path: Path, step: Step) -> None:
    found = diagnosis(tmp_path, 0.6, step=step)
    assert causes(found) == ["cpu-steal"]
    assert found.incidents[0].lost_ratio == pytest.approx(6 / 12.55, rel=0.05)
    assert "60 % of one was stolen meanwhile (usually 0.0 %)" in found.incidents[0].summary


def test_no_more_is_charged_than_was_stolen(tmp_path: Path) -> None:
    (incident,) = (one for one in diagnosis(tmp_path, 0.4).incidents if one.cause == "cpu-steal")
    assert incident.lost_ratio == pytest.approx(0.4, rel=0.05)


@pytest.mark.parametrize(("stolen", "before"), [(0.01, 0.0), (0.6, 0.6)])
def test_what_was_not_stolen_or_always_was_is_no_reason(tmp_path: Path, stolen: float, before: float) -> None:
    assert causes(diagnosis(tmp_path, stolen, before)) == ["gpu-slower"]


def test_a_part_that_may_have_been_stolen_leaves_the_device_without_a_verdict(tmp_path: Path) -> None:
    assert causes(diagnosis(tmp_path, 0.15)) == ["unexplained"]


def test_without_cpu_seconds_it_is_not_evaluated(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _scene, _trainer: None, not_traced={"cpu_seconds": "an older recording"})
    assert "cpu-steal" in {one.cause for one in found.not_evaluated}
