"""gpu-slower: the same work took the device longer; abstains where the class does different work each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, Scene, Step
from tests.unit.rules.golden import LENGTH_S, QUIET_S, causes, diagnosed


def test_more_device_time_for_the_same_work_is_named(tmp_path: Path) -> None:
    def slower(scene: Scene, trainer: Actor) -> None:
        scene.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=9))

    diagnosis = diagnosed(tmp_path, slower)
    assert causes(diagnosis) == ["gpu-slower"]
    assert diagnosis.incidents[0].evidence["slowdown"] == pytest.approx(1.5, abs=0.02)


def test_a_class_that_varies_anyway_gets_no_verdict_about_the_device(tmp_path: Path) -> None:
    def varied(scene: Scene, trainer: Actor) -> None:
        for begin in range(int(QUIET_S), int(LENGTH_S)):
            scene.train(trainer, begin, begin + 1, Step(noise=0.6, size_bytes=1 << 26))

    assert causes(diagnosed(tmp_path, varied)) == []


def test_without_epochs_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _scene, _trainer: None, not_traced={"epochs": "no return probes"})
    assert "gpu-slower" in {one.cause for one in diagnosis.not_evaluated}
