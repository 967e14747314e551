"""launch-bound: the device waits for launches; slower launches that run ahead cost nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, Scene, Step
from tests.unit.rules.golden import LENGTH_S, QUIET_S, causes, diagnosed

SLOW = {"cudaLaunchKernel": (80.0, 0.1), "cudaStreamSynchronize": (1.0, 0.1)}


def test_launches_that_keep_the_device_waiting_are_named(tmp_path: Path) -> None:
    def slow(scene: Scene, trainer: Actor) -> None:
        scene.train(trainer, QUIET_S, LENGTH_S, Step(enqueue_ms=8.9, busy_ms=9.0), calls=SLOW)

    diagnosis = diagnosed(tmp_path, slow)
    assert causes(diagnosis) == ["launch-bound"]
    assert diagnosis.incidents[0].lost_ratio == pytest.approx(3 / 9.55, rel=0.05)


def test_launches_that_run_ahead_may_be_slow(tmp_path: Path) -> None:
    def hidden(scene: Scene, trainer: Actor) -> None:
        scene.train(trainer, QUIET_S, LENGTH_S, Step(enqueue_ms=5.5), calls=SLOW)

    assert causes(diagnosed(tmp_path, hidden)) == []


def test_without_exact_sums_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _scene, _trainer: None, not_traced={"op_stats": "launches only counted"})
    assert "launch-bound" in {one.cause for one in diagnosis.not_evaluated}
