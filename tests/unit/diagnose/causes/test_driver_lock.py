"""driver-lock: fires for time blocked in the kernel inside GPU calls, beyond the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import AGENT_PID, BEGIN_NS, Actor, ScriptedRun, Step
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

LOCKED_MS = 3.0


def locked(run: ScriptedRun, trainer: Actor, *, in_calls: bool = True) -> None:
    """Each step's copies wait for a lock before the GPU has work."""
    step = Step(idle_ms=0.5 + LOCKED_MS, idle={"uninterruptible": LOCKED_MS})
    steps = run.train(trainer, QUIET_S, LENGTH_S, step, calls={"cudaLaunchKernel": (80.0, 0.005)})
    for second in range(int(QUIET_S), int(LENGTH_S)):
        count = sum(int(end) == second for _, _, end in steps)
        lock_ns = int(count * LOCKED_MS * 1e6) if in_calls else 0
        run.op(trainer, "cudaMemcpyAsync", second, count, LOCKED_MS, run_ns=0, uninterruptible_ns=lock_ns)
        processes = "[[100, 1073741824], [900, 1048576]]"
        run.append(
            tables.GPU_SAMPLES, time_ns=BEGIN_NS + second * 10**9, uuid="GPU-0", gpu_index=0, processes=processes
        )


def test_waiting_inside_calls_is_charged_to_the_driver(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, locked)
    assert causes(diagnosis) == ["driver-lock"]
    incident = diagnosis.incidents[0]
    assert "cudaMemcpyAsync" in incident.summary
    assert [one.pid for one in incident.culprits] == [900]
    assert incident.lost_ratio == pytest.approx(LOCKED_MS / (6.55 + LOCKED_MS), rel=0.05)


def test_who_let_go_of_the_lock_is_named_the_recorder_first(tmp_path: Path) -> None:
    def held(run: ScriptedRun, trainer: Actor) -> None:
        locked(run, trainer)
        names = ((AGENT_PID, "ingero"), (500, "nv-hostengine"))
        for part in range(600):
            begin = QUIET_S + part / 100
            pid, name = names[part % 3 == 0]
            waker = Actor(number=0, pid=pid, name=name)
            run.off_cpu(trainer, begin, begin + 0.003, "uninterruptible", waker=waker, is_gpu_call=True)

    (incident,) = diagnosed(tmp_path, held).incidents
    assert [(one.pid, one.name) for one in incident.culprits] == [(AGENT_PID, "ingero"), (500, "nv-hostengine")]
    assert "ingero itself [77], as it asked NVML, and nv-hostengine (500) released it" in incident.summary
    assert [one.text for one in incident.fixes][1] == "make nv-hostengine [500] poll less often"


def test_a_lock_outside_calls_is_not_the_drivers(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: locked(run, trainer, in_calls=False))
    assert "driver-lock" not in causes(diagnosis)


def test_without_calls_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, locked, not_traced={"op_stats": "an older recording"})
    assert "driver-lock" in {one.cause for one in diagnosis.not_evaluated}
