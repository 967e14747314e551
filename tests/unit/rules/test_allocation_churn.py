"""allocation-churn: allocations on the path; the same allocations off the path cost nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, Scene, Step
from tests.unit.rules.golden import LENGTH_S, QUIET_S, causes, diagnosed


def test_slow_allocations_with_an_empty_device_are_named(tmp_path: Path) -> None:
    def churn(scene: Scene, trainer: Actor) -> None:
        calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMalloc": (1.0, 3.0), "cudaStreamSynchronize": (1.0, 5.0)}
        scene.train(trainer, QUIET_S, LENGTH_S, Step(empty_ms=3.5), calls=calls)

    diagnosis = diagnosed(tmp_path, churn)
    assert causes(diagnosis) == ["allocation-churn"]
    assert "cudaMalloc 3.00 ms" in diagnosis.incidents[0].summary
    assert diagnosis.incidents[0].lost_ratio == pytest.approx(3 / 9.5, rel=0.03)


def test_allocations_that_do_not_delay_the_device_are_silent(tmp_path: Path) -> None:
    def hidden(scene: Scene, trainer: Actor) -> None:
        calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMalloc": (1.0, 3.0), "cudaStreamSynchronize": (1.0, 2.0)}
        scene.train(trainer, QUIET_S, LENGTH_S, Step(), calls=calls)

    assert causes(diagnosed(tmp_path, hidden)) == []


def test_without_exact_sums_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _scene, _trainer: None, not_traced={"op_stats": "launches only counted"})
    assert "allocation-churn" in {one.cause for one in diagnosis.not_evaluated}
