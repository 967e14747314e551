"""allocation-churn: allocations on the critical path; the same allocations off the path cost nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.diagnose.findings import FindingKind
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file

ALLOCATING = {"cudaLaunchKernel": (80.0, 0.005), "cudaMalloc": (1.0, 3.0), "cudaStreamSynchronize": (1.0, 5.0)}
IDLE_MS = 90.0


def test_slow_allocations_with_an_empty_device_are_named(tmp_path: Path) -> None:
    def churn(run: ScriptedRun, trainer: Actor) -> None:
        calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMalloc": (1.0, 3.0), "cudaStreamSynchronize": (1.0, 5.0)}
        run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=3.5), calls=calls)

    diagnosis = diagnosed(tmp_path, churn)
    assert causes(diagnosis) == ["allocation-churn"]
    assert "cudaMalloc 3.00 ms" in diagnosis.incidents[0].summary
    assert diagnosis.incidents[0].lost_ratio == pytest.approx(3 / 9.5, rel=0.03)


def test_allocations_that_do_not_delay_the_device_are_silent(tmp_path: Path) -> None:
    def hidden(run: ScriptedRun, trainer: Actor) -> None:
        calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMalloc": (1.0, 3.0), "cudaStreamSynchronize": (1.0, 2.0)}
        run.train(trainer, QUIET_S, LENGTH_S, Step(), calls=calls)

    assert causes(diagnosed(tmp_path, hidden)) == []


def test_allocations_of_each_step_are_told_from_the_first_second_on(tmp_path: Path) -> None:
    """As with empty_cache() in the loop: there is nothing to compare with, and a cache needs none."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMalloc": (1.0, 1.5), "cudaStreamSynchronize": (1.0, 5.0)}
        run.train(trainer, 0, LENGTH_S, Step(idle_ms=2.0), calls=calls)
    diagnosis = diagnosed_file(path)
    assert causes(diagnosis) == ["allocation-churn"]
    (incident,) = diagnosis.incidents
    assert incident.kind is FindingKind.BOTTLENECK
    assert incident.lost_ratio == pytest.approx(1.5 / 8.05, rel=0.1)


@pytest.mark.parametrize(("frees_before", "cause"), [(0, "allocation-churn"), (4, "gpu-slower")])
def test_in_steps_without_a_sync_frees_that_were_not_there_before_make_it_wait(
    tmp_path: Path, frees_before: int, cause: str
) -> None:
    """They let the GPU run dry; as many frees as ever that wait for longer wait for the GPU."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for begin_s, end_s, blocked_ms, frees in ((0, QUIET_S, 4.0, frees_before), (QUIET_S, LENGTH_S, 9.0, 4)):
            for at_s in add_steps(
                run, trainer, begin_s, end_s, RepeatedStep(host_ms=3.0, blocked={"sync": blocked_ms})
            ):
                run.op(trainer, "cudaLaunchKernel", at_s, 153, 0.005)
                run.op(trainer, "cudaFree", at_s, frees, blocked_ms / 4)
    (incident,) = diagnosed_file(path).incidents
    assert (incident.cause, incident.lost_ratio) == (cause, pytest.approx(5 / 12, rel=0.05))


def test_memory_of_the_host_that_is_pinned_in_each_step_is_not_called_the_gpus(tmp_path: Path) -> None:
    def pinning(run: ScriptedRun, trainer: Actor) -> None:
        calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaHostAlloc": (1.0, 3.0), "cudaFreeHost": (1.0, 0.3)}
        run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=3.8), calls=calls | {"cudaStreamSynchronize": (1.0, 5.0)})

    diagnosis = diagnosed(tmp_path, pinning)
    assert causes(diagnosis) == ["allocation-churn"]
    (incident,) = diagnosis.incidents
    assert "allocating pinned host memory: cudaHostAlloc 3.00 ms" in incident.summary
    assert "pin_memory" in incident.fixes[0].command


def test_without_exact_sums_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"op_stats": "launches only counted"})
    assert "allocation-churn" in {one.cause for one in diagnosis.not_evaluated}


def test_a_server_that_allocates_as_ever_and_computes_more_has_another_reason(tmp_path: Path) -> None:
    """Ten requests a second: idle for nine tenths of the time, in which no call is made."""
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        server = run.process(100, "python")
        now = 0.0
        while now < LENGTH_S - 0.2:
            work_ms = 4.5 if now < QUIET_S else 7.5
            step = Step(idle_ms=IDLE_MS + work_ms, idle={"sleep": IDLE_MS})
            ((begin, _, now),) = run.train(server, now, now + 1e-6, step, calls=ALLOCATING)
            run.off_cpu(server, begin, begin + IDLE_MS / 1e3, "sleep", waker="network")
    assert causes(diagnosed_file(tmp_path / "scene.db")) == ["unexplained"]


def test_what_a_loop_loses_at_best_is_not_the_allocations_of_an_incident(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        churn = ALLOCATING | {"cudaMalloc": (1.0, 16.0)}
        run.train(trainer, 0, 4, Step(idle_ms=4))
        run.train(trainer, 4, 8, Step(idle_ms=20), calls=churn)
        run.train(trainer, 8, LENGTH_S, Step(idle_ms=4))
    incidents = diagnosed_file(tmp_path / "scene.db").incidents
    found = next(one for one in incidents if one.cause == "allocation-churn")
    assert "lost in the baseline to" not in found.evidence
