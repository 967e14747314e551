"""gil: sleeps of one switch interval that another thread of the process ends."""

from __future__ import annotations

from pathlib import Path

from ingero.demo.scene import Actor, Scene, Step
from tests.unit.rules.golden import LENGTH_S, QUIET_S, causes, diagnosed

HOLDER = 105


def contended(scene: Scene, trainer: Actor, naps_ms: float) -> None:
    """Each step sleeps three times before its first launch, then a thread of the process hands over."""
    asleep = 3 * (naps_ms + 0.1) + 2
    steps = scene.train(trainer, QUIET_S, LENGTH_S, Step(empty_ms=0.5 + asleep, empty={"sleep": asleep}))
    for begin, first, _ in steps:
        now = begin
        for _nap in range(3):
            scene.off_cpu(trainer, now, now + naps_ms / 1e3, "sleep", waker="timer")
            now += (naps_ms + 0.1) / 1e3
        scene.off_cpu(trainer, now, now + 0.002, "sleep", waker=Actor(number=trainer.number, pid=HOLDER, name="hog"))
        scene.off_cpu(trainer, now + 0.0021, now + 0.0024, "runq", tid=HOLDER, culprit=(1, "x"))
        assert now + 0.002 <= first


def test_waits_of_one_switch_interval_are_the_interpreter_lock(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda scene, trainer: contended(scene, trainer, 5.06))
    assert causes(diagnosis) == ["gil"]
    assert diagnosis.incidents[0].lost_ratio > 0.6


def test_naps_of_another_length_are_not(tmp_path: Path) -> None:
    assert "gil" not in causes(diagnosed(tmp_path, lambda scene, trainer: contended(scene, trainer, 2.0)))


def test_without_intervals_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _scene, _trainer: None, not_traced={"offcpu": "--offcpu=false"})
    assert "gil" in {one.cause for one in diagnosis.not_evaluated}
