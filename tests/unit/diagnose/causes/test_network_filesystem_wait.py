"""network-filesystem-wait: fires for I/O waits behind which no block request stands."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.ops import IoOp
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed


def waiting(run: ScriptedRun, trainer: Actor, *, is_disk: bool = False) -> None:
    """A worker waits for file contents that another process serves."""
    worker = run.process(101, "pt_data_worker", parent=trainer)
    server: Actor | Literal["kworker"] = Actor(number=0, pid=700, name="sshfs")
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=20.5, idle={"sleep": 20})):
        run.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=worker)
        for part in range(3):  # one item is several reads
            run.off_cpu(worker, begin + 0.001 + 0.006 * part, begin + 0.007 + 0.006 * part, "io", waker=server)
        if is_disk:
            run.host_event(IoOp.READ, begin + 0.002, actor=worker, ms=16, arg0=1 << 20, arg2=8 << 20)


def test_a_file_that_another_process_serves_is_named_with_it(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, waiting)
    assert causes(diagnosis) == ["network-filesystem-wait"]
    incident = diagnosis.incidents[0]
    assert [(one.pid, one.name) for one in incident.culprits] == [(700, "sshfs")]
    assert incident.lost_ratio == pytest.approx(18 / 26.55, rel=0.1)


def test_with_a_block_request_under_way_it_is_the_disk(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: waiting(run, trainer, is_disk=True))
    assert causes(diagnosis) == ["block-io"]


def test_a_page_that_another_worker_was_reading_is_no_network_file(tmp_path: Path) -> None:
    def shared(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        other = run.process(102, "pt_data_worker", parent=trainer)
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=20.5, idle={"sleep": 20})):
            run.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=worker)
            run.off_cpu(worker, begin + 0.001, begin + 0.019, "io", waker=other)

    assert causes(diagnosed(tmp_path, shared)) == ["data-starvation"]


def test_without_block_requests_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, waiting, not_traced={"IO": "switched off (io)"})
    assert "network-filesystem-wait" not in causes(diagnosis)
    assert "network-filesystem-wait" in {one.cause for one in diagnosis.not_evaluated}


def copying(
    run: ScriptedRun, trainer: Actor, *, faults: int = 300, waker: str = "gcsfuse", asleep_ms: float = 12
) -> None:
    """Each copy to the GPU sleeps until another process has answered for the pages that it touches."""
    for second in range(int(QUIET_S)):
        run.second(trainer, second, run=900)
    for second in range(int(QUIET_S), int(LENGTH_S)):
        run.second(trainer, second, run=200, major_faults=faults)
    server = Actor(number=0, pid=700, name=waker)
    stack = run.stack([("/app/load.py", 31, "copy")])
    calls = {"cudaMemcpy": (16.0, 0.8)}
    for begin, _, _ in run.train(
        trainer, QUIET_S, LENGTH_S, Step(busy_ms=18, size_bytes=1 << 20), sync_op="cudaMemcpy", calls=calls
    ):
        end = begin + 0.002 + asleep_ms / 1e3
        run.off_cpu(trainer, begin + 0.002, end, "sleep", waker=server, is_gpu_call=True)
        run.call(trainer, "cudaMemcpy", begin + 0.0015, 16, stack_hash=stack)


def test_pages_that_a_copy_touches_are_the_mounts_fault_and_not_the_gpus(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, copying)
    assert causes(diagnosis) == ["network-filesystem-wait"]
    (incident,) = diagnosis.incidents
    assert "served by gcsfuse [700], inside copies that touched 1,800 pages of it first" in incident.summary
    assert str(incident.line) == "copy() at /app/load.py:31"
    assert [(one.pid, one.name) for one in incident.culprits] == [(700, "gcsfuse")]
    assert "read the file whole" in incident.fixes[0].text


def test_what_faults_cost_beside_the_sleeps_is_the_mounts_too(tmp_path: Path) -> None:
    """A third of what the copies take longer: handling of faults, the way back of answers, waits for a CPU."""
    diagnosis = diagnosed(tmp_path, lambda run, trainer: copying(run, trainer, asleep_ms=8))
    assert causes(diagnosis) == ["network-filesystem-wait"]
    assert diagnosis.incidents[0].explained_ratio > 0.9


def test_a_copy_that_touches_no_page_waits_for_the_gpu(tmp_path: Path) -> None:
    """Whoever ends its sleep: a helper of the driver's may be a process."""
    assert causes(diagnosed(tmp_path, lambda run, trainer: copying(run, trainer, faults=0))) == ["gpu-slower"]


def test_a_copy_that_the_driver_ends_waits_for_the_gpu(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: copying(run, trainer, waker="nvidia-cuda-mps"))
    assert causes(diagnosis) == ["gpu-slower"]
