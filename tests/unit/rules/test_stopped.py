"""stopped: names the sender; a process that never goes on is found, too; a hang is not a stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, Scene, Step
from ingero.ops import HostOp
from tests.unit.rules.golden import LENGTH_S, QUIET_S, causes, diagnosed

STOP_S = 2.0


def stop(scene: Scene, trainer: Actor) -> None:
    """Stopped in its drain for two seconds by pid 77."""
    scene.process(77, "gdb")
    scene.host_event(HostOp.STOP_SIGNAL, QUIET_S, actor=trainer, arg1=77, arg2=19)
    scene.train(trainer, QUIET_S, QUIET_S + 0.001, Step(busy_ms=6 + STOP_S * 1e3, drain={"stopped": STOP_S * 1e3}))
    scene.train(trainer, QUIET_S + STOP_S + 0.007, LENGTH_S, Step())


def test_the_sender_of_the_signal_is_named(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, stop)
    assert causes(diagnosis) == ["stopped"]
    assert [one.pid for one in diagnosis.incidents[0].culprits] == [77]
    assert diagnosis.incidents[0].lost_ns == pytest.approx(STOP_S * 1e9, rel=0.02)


def test_a_long_wait_for_the_device_is_no_stop(tmp_path: Path) -> None:
    def slow(scene: Scene, trainer: Actor) -> None:
        scene.train(trainer, QUIET_S, QUIET_S + 0.001, Step(busy_ms=6 + STOP_S * 1e3))
        scene.train(trainer, QUIET_S + STOP_S + 0.007, LENGTH_S, Step())

    assert "stopped" not in causes(diagnosed(tmp_path, slow))


def test_without_epochs_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _scene, _trainer: None, not_traced={"epochs": "no return probes"})
    assert "stopped" in {one.cause for one in diagnosis.not_evaluated}
