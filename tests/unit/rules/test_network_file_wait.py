"""network-file-wait: fires for I/O waits behind which no block request stands."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from ingero.demo.scene import Actor, Scene, Step
from ingero.ops import IoOp
from tests.unit.rules.golden import LENGTH_S, QUIET_S, causes, diagnosed


def waiting(scene: Scene, trainer: Actor, *, is_disk: bool = False) -> None:
    """A worker waits for file contents that another process serves."""
    worker = scene.process(101, "pt_data_worker", parent=trainer)
    server: Actor | Literal["kworker"] = Actor(number=0, pid=700, name="sshfs")
    for begin, _, _ in scene.train(trainer, QUIET_S, LENGTH_S, Step(empty_ms=20.5, empty={"sleep": 20})):
        scene.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=worker)
        for part in range(3):  # one item is several reads
            scene.off_cpu(worker, begin + 0.001 + 0.006 * part, begin + 0.007 + 0.006 * part, "io", waker=server)
        if is_disk:
            scene.host_event(IoOp.READ, begin + 0.002, actor=worker, ms=16, arg0=1 << 20, arg2=8 << 20)


def test_a_file_that_another_process_serves_is_named_with_it(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, waiting)
    assert causes(diagnosis) == ["network-file-wait"]
    incident = diagnosis.incidents[0]
    assert [(one.pid, one.name) for one in incident.culprits] == [(700, "sshfs")]
    assert incident.lost_ratio == pytest.approx(18 / 26.55, rel=0.1)


def test_with_a_block_request_under_way_it_is_the_disk(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda scene, trainer: waiting(scene, trainer, is_disk=True))
    assert causes(diagnosis) == ["block-io"]


def test_a_page_that_another_worker_was_reading_is_no_network_file(tmp_path: Path) -> None:
    def shared(scene: Scene, trainer: Actor) -> None:
        worker = scene.process(101, "pt_data_worker", parent=trainer)
        other = scene.process(102, "pt_data_worker", parent=trainer)
        for begin, _, _ in scene.train(trainer, QUIET_S, LENGTH_S, Step(empty_ms=20.5, empty={"sleep": 20})):
            scene.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=worker)
            scene.off_cpu(worker, begin + 0.001, begin + 0.019, "io", waker=other)

    assert causes(diagnosed(tmp_path, shared)) == ["data-starvation"]


def test_without_block_requests_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, waiting, not_traced={"IO": "switched off (io)"})
    assert "network-file-wait" not in causes(diagnosis)
    assert "network-file-wait" in {one.cause for one in diagnosis.not_evaluated}
