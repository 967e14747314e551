"""allocator-retry: failure, frees, success; its time is not counted twice, and a plain success is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.diagnose.findings import FindingKind
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file
from tests.unit.diagnose.causes.requests import GIB, LINE, retried, sampled

RETRY_MS = 9.0


def flushing(run: ScriptedRun, trainer: Actor, every: int = 2) -> None:
    """Every second step asks in vain and flushes the cache before its first launch."""
    calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMalloc": (1.0, 0.45), "cudaFree": (2.0, 2.0)}
    steps = run.train(
        trainer,
        QUIET_S,
        LENGTH_S,
        Step(idle_ms=0.5 + RETRY_MS / every, idle={"run": 0.5 + RETRY_MS / every}),
        calls=calls,
    )
    sampled(run, LENGTH_S, 15 * GIB + (GIB >> 1))
    for begin, _, _ in steps[::every]:
        assert retried(run, trainer, begin, GIB, stack=run.stack([LINE])) == RETRY_MS


def test_the_time_from_failure_to_success_is_charged_to_the_retry(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, flushing)
    assert causes(diagnosis) == ["allocator-retry"]
    incident = diagnosis.incidents[0]
    assert incident.kind is FindingKind.INCIDENT
    assert incident.lost_ratio == pytest.approx(4.5 / 11.05, rel=0.05)
    assert incident.line is not None
    assert incident.line.line == 42
    assert "freed" in incident.summary


def test_retries_of_steps_without_a_sync_wait_for_the_gpu(tmp_path: Path) -> None:
    """It runs dry while they wait for it: when, is not known."""
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        usual = RepeatedStep(host_ms=3.0, blocked={"launch": 4.0})
        for begin in add_steps(run, trainer, 0, QUIET_S, usual):
            run.op(trainer, "cudaLaunchKernel", begin, usual.launches, 0.005)
        for begin in add_steps(run, trainer, QUIET_S, LENGTH_S, replace(usual, blocked={"sync": RETRY_MS})):
            run.op(trainer, "cudaLaunchKernel", begin, usual.launches, 0.005)
            run.op(trainer, "cudaFree", begin, 4, 2.0)
            retried(run, trainer, begin, GIB)
        sampled(run, LENGTH_S, 15 * GIB + (GIB >> 1))
    diagnosis = diagnosed_file(tmp_path / "scene.db")
    assert causes(diagnosis) == ["allocator-retry"]
    assert diagnosis.incidents[0].lost_ratio == pytest.approx(5 / 12, rel=0.05)


def test_retries_without_a_record_are_counted_by_their_failures(tmp_path: Path) -> None:
    def sparse(run: ScriptedRun, trainer: Actor) -> None:
        """Of each eight failures one has a record, with the frees and the success."""
        calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMalloc": (1.0, 0.45), "cudaFree": (2.0, 2.0)}
        step = Step(idle_ms=0.5 + RETRY_MS / 2, idle={"run": 0.5 + RETRY_MS / 2})
        steps = run.train(trainer, QUIET_S, LENGTH_S, step, calls=calls)
        sampled(run, LENGTH_S, 15 * GIB + (GIB >> 1))
        for index, (begin, _, _) in enumerate(steps[::2]):
            if index % 8:
                run.memory(trainer, "cudaMalloc", int(begin), 0, GIB, failures=1)
            else:
                retried(run, trainer, begin, GIB, stack=run.stack([LINE]))

    (incident,) = diagnosed(tmp_path, sparse).incidents
    assert incident.cause == "allocator-retry"
    assert incident.lost_ratio == pytest.approx(4.5 / 11.05, rel=0.08)
    assert incident.evidence["of them with a record"] == pytest.approx(incident.evidence["retries"] / 8, abs=2)


def test_retries_that_cost_nothing_are_told_without_lost_time(tmp_path: Path) -> None:
    def hidden(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step())
        sampled(run, LENGTH_S, 15 * GIB + (GIB >> 1))
        for second in (7, 8, 9):
            retried(run, trainer, second, GIB)

    diagnosis = diagnosed(tmp_path, hidden)
    assert causes(diagnosis) == ["allocator-retry"]
    assert diagnosis.incidents[0].kind is FindingKind.EVENT
    assert diagnosis.incidents[0].lost_ns == 0


def test_one_retry_while_an_allocator_finds_its_size_is_silent(tmp_path: Path) -> None:
    def once(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step())
        retried(run, trainer, 7, GIB)

    assert causes(diagnosed(tmp_path, once)) == []


def test_frees_before_allocations_that_succeed_are_churn(tmp_path: Path) -> None:
    def churn(run: ScriptedRun, trainer: Actor) -> None:
        calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMalloc": (1.0, 0.45), "cudaFree": (2.0, 2.0)}
        step = Step(idle_ms=5.0, idle={"run": 5.0})
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, step, calls=calls):
            run.call(trainer, "cudaFree", begin, 2)
            run.call(trainer, "cudaMalloc", begin + 0.003, 0.45, arg0=GIB)

    assert causes(diagnosed(tmp_path, churn)) == ["allocation-churn"]


def test_without_allocations_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, flushing, not_traced={"allocations": "entry probes only"})
    assert "allocator-retry" in {one.cause for one in diagnosis.not_evaluated}
