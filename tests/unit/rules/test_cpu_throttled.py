"""cpu-throttled: fires by the kernel's own clock, is silent where the throttled time costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, Scene, Step
from tests.unit.rules.golden import LENGTH_S, QUIET_S, causes, diagnosed


def test_the_throttled_clock_of_the_path_is_charged_to_the_quota(tmp_path: Path) -> None:
    def throttled(scene: Scene, trainer: Actor) -> None:
        scene.train(trainer, QUIET_S, LENGTH_S, Step(late_ms=3, drain={"throttled": 2.95}))

    diagnosis = diagnosed(tmp_path, throttled)
    assert causes(diagnosis) == ["cpu-throttled"]
    assert diagnosis.incidents[0].lost_ratio == pytest.approx(2.95 / 9.5, rel=0.03)


def test_throttling_inside_the_wait_for_the_device_costs_nothing(tmp_path: Path) -> None:
    def hidden(scene: Scene, trainer: Actor) -> None:
        scene.train(trainer, QUIET_S, LENGTH_S, Step(drain={"throttled": 2.95}))

    assert causes(diagnosed(tmp_path, hidden)) == []


def test_without_epochs_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _scene, _trainer: None, not_traced={"epochs": "no return probes"})
    assert "cpu-throttled" in {one.cause for one in diagnosis.not_evaluated}
