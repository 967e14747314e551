"""ipc-bound: a trainer waits for another process's answer; a server that waits for its next request does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, Scene, Step
from tests.unit.rules.golden import LENGTH_S, QUIET_S, causes, diagnosed

PARTNER = Actor(number=0, pid=700, name="featurizer")
CALL = (("/usr/lib/python3.12/multiprocessing/managers.py", 820, "_callmethod"), ("/srv/job/train.py", 98, "main"))


def asking(scene: Scene, trainer: Actor) -> None:
    """8 ms asleep in each step until a process outside the tree wakes it."""
    steps = scene.train(trainer, QUIET_S, LENGTH_S, Step(empty_ms=8.5, empty={"sleep": 8}))
    for begin, _, _ in steps:
        scene.off_cpu(trainer, begin, begin + 0.008, "sleep", waker=PARTNER)


def test_the_process_that_answers_late_is_named(tmp_path: Path) -> None:
    def training(scene: Scene, trainer: Actor) -> None:
        worker = scene.process(101, "pt_data_worker", parent=trainer)
        scene.off_cpu(worker, 0.1, 0.2, "sleep", waker="timer")
        asking(scene, trainer)

    diagnosis = diagnosed(tmp_path, training)
    assert causes(diagnosis) == ["ipc-bound"]
    incident = diagnosis.incidents[0]
    assert [(one.pid, one.name) for one in incident.culprits] == [(700, "featurizer")]
    assert incident.lost_ratio == pytest.approx(8 / 14.55, rel=0.05)


def test_a_client_is_known_by_its_frames(tmp_path: Path) -> None:
    def calling(scene: Scene, trainer: Actor) -> None:
        asking(scene, trainer)
        for tenth in range(10 * int(QUIET_S), 10 * int(LENGTH_S)):
            scene.sample(trainer, tenth / 10 + 0.004, CALL, state="sleep", ms=100)

    diagnosis = diagnosed(tmp_path, calling)
    assert causes(diagnosis) == ["ipc-bound"]
    assert str(diagnosis.incidents[0].line) == "main() at /srv/job/train.py:98"


def test_a_process_that_may_be_a_server_has_no_demand(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, asking)) == []


def test_without_intervals_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _scene, _trainer: None, not_traced={"offcpu": "--offcpu=false"})
    assert "ipc-bound" in {one.cause for one in diagnosis.not_evaluated}
