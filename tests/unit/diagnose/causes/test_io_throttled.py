"""io-throttled: the workload's own limit holds its requests back; nobody else at the disk is to blame for that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.events import HostFlag
from ingero.ops import IoOp
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

DISK = 8 << 20
WAIT_MS = 18.0
LIMITS = [("8:0", "rbps=20971520", "/job one")]


def reading(
    run: ScriptedRun, trainer: Actor, device_ms: float = 1, limits: list[tuple[str, str, str]] = LIMITS
) -> None:
    """Each step waits for the disk; a kernel worker does what was held back, and another process reads, too."""
    run.scheduling(trainer.pid, process=trainer.number, io_limits=json.dumps(limits))
    worker, other = run.text("kworker/u8:0"), run.text("other")
    place = {"arg0": 1 << 20, "arg2": DISK}
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=18.5, idle={"io": WAIT_MS})):
        end = begin + WAIT_MS / 1e3
        run.off_cpu(trainer, begin, end, "io", waker="block")
        run.host_event(IoOp.READ, end - device_ms / 1e3, actor=trainer, ms=device_ms, comm=run.text("python"), **place)
        run.host_event(IoOp.READ, begin, ms=15, pid=24528, tid=24528, comm=worker, **place)
        run.host_event(IoOp.READ, begin, ms=15, pid=900, tid=900, comm=other, **place)


def test_the_own_limit_is_named_and_not_who_else_used_the_disk(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, reading)
    assert causes(diagnosis) == ["io-throttled"]
    (incident,) = diagnosis.incidents
    assert "its own cgroup /job one limits to 20.0 MiB/s read from disk 8:0" in incident.summary
    assert incident.lost_ratio == pytest.approx(WAIT_MS / 24.55, rel=0.1)
    assert incident.culprits == ()
    assert incident.fixes[0].command.startswith("echo '8:0 rbps=max' | sudo tee '/sys/fs/cgroup/job one/io.max'")


def test_a_disk_that_is_slow_itself_is_not_the_limits_fault(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, trainer: reading(run, trainer, device_ms=16))) == ["block-io"]


def test_a_limit_of_another_disk_or_direction_is_not_to_blame(tmp_path: Path) -> None:
    others = [("8:16", "rbps=1000", "/job"), ("8:0", "wbps=1000", "/job")]
    diagnosis = diagnosed(tmp_path, lambda run, trainer: reading(run, trainer, limits=others))
    assert causes(diagnosis) == ["block-io"]


def test_a_kernel_worker_is_not_to_be_limited(tmp_path: Path) -> None:
    incident = diagnosed(tmp_path, lambda run, trainer: reading(run, trainer, limits=[])).incidents[0]
    assert [one.command for one in incident.fixes if "ionice" in one.command] == ["sudo ionice -c 3 -p 900"]


def test_io_waits_inside_copies_are_no_work_of_the_gpu(tmp_path: Path) -> None:
    """A copy touches pages of a mapped file, which are read below the limit: hardly a request is seen."""

    def copying(run: ScriptedRun, trainer: Actor) -> None:
        run.scheduling(trainer.pid, process=trainer.number, io_limits=json.dumps(LIMITS))
        step = Step(busy_ms=6 + WAIT_MS, sync={"io": WAIT_MS, "sleep": 5.0})
        for number, (_, first, _) in enumerate(run.train(trainer, QUIET_S, LENGTH_S, step, sync_op="cudaMemcpy")):
            run.off_cpu(trainer, first + 0.001, first + 0.001 + WAIT_MS / 1e3, "io", waker="block")
            if number % 10 == 0:
                flags = int(HostFlag.IN_PAGE_FAULT)
                end = first + 0.001 + WAIT_MS / 1e3
                run.host_event(IoOp.READ, end - 0.001, actor=trainer, ms=1, arg0=1 << 20, arg2=DISK, flags=flags)

    (incident,) = diagnosed(tmp_path, copying).incidents
    assert incident.cause == "io-throttled"
    assert incident.lost_ratio == pytest.approx(WAIT_MS / 24.55, rel=0.1)
    assert "read the mapped file whole" in incident.fixes[1].text
