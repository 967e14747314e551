"""unexpected-sync: the same launches in more sync intervals, with an empty device after each."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.demo.scripted_steps import Phase
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.diagnose.findings import Diagnosis, FindingKind
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file

QUARTER = Step(idle_ms=1.0, launch_ms=0.3, busy_ms=1.5, launches=20, size_bytes=1 << 18)
PER_STEP_MS = 6.55  # of the healthy trainer
PER_QUARTER_MS = 2.55
NORM_MS, BODY_MS = 0.75, 4.15


def reading_often(run: ScriptedRun, trainer: Actor) -> None:
    """Each step reads the lost time four times: after each the host launches into an empty queue."""
    calls = {"cudaLaunchKernel": (20.0, 0.005), "cudaStreamSynchronize": (1.0, 1.2)}
    for number, (_, _, end) in enumerate(run.train(trainer, QUIET_S, LENGTH_S, QUARTER, calls=calls)):
        if number % 50 == 0:
            line = run.stack((("/srv/job/train.py", 110, "log_loss"),))
            run.call(trainer, "cudaStreamSynchronize", end - 0.0012, 1.2, stack_hash=line)


def test_a_loop_that_reads_the_loss_too_often_is_named_with_its_line(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, reading_often)
    assert causes(diagnosis) == ["unexpected-sync"]
    incident = diagnosis.incidents[0]
    assert incident.lost_ratio == pytest.approx(1 - PER_STEP_MS / (4 * PER_QUARTER_MS), rel=0.1)
    assert str(incident.line) == "log_loss() at /srv/job/train.py:110"
    assert incident.evidence["syncs per launch against the baseline"] == pytest.approx(4, rel=0.1)


def test_more_syncs_that_cost_nothing_are_silent(tmp_path: Path) -> None:
    def cheap(run: ScriptedRun, trainer: Actor) -> None:
        step = Step(idle_ms=0.125, launch_ms=0.3, busy_ms=1.4625, launches=20, size_bytes=1 << 18)
        run.train(trainer, QUIET_S, LENGTH_S, step)

    assert causes(diagnosed(tmp_path, cheap)) == []


def test_other_work_is_not_compared(tmp_path: Path) -> None:
    def evaluating(run: ScriptedRun, trainer: Actor) -> None:
        """Shorter sync intervals with other sizes: a phase of its own, as fast as it can be."""
        step = Step(idle_ms=0.2, launch_ms=0.3, busy_ms=2.5, launches=20, size_bytes=1 << 10)
        run.train(trainer, QUIET_S, LENGTH_S, step)

    assert causes(diagnosed(tmp_path, evaluating)) == []


def test_without_counts_of_calls_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, reading_often, not_traced={"op_stats": "not counted"})
    assert "unexpected-sync" in {one.cause for one in diagnosis.not_evaluated}


def always_reading(folder: Path, *, lines: int = 3, step: Step = QUARTER) -> Diagnosis:
    """From the first second on the loop waits for the GPU at several lines, once in each step."""
    path = folder / "always.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        calls = {"cudaLaunchKernel": (20.0, 0.005), "cudaStreamSynchronize": (1.0, 1.2)}
        for number, (_, _, end) in enumerate(run.train(trainer, 0, LENGTH_S, step, calls=calls)):
            if number % 10 < lines:
                line = run.stack((("/srv/job/train.py", 110 + number % 10, "log_loss"),))
                run.call(trainer, "cudaStreamSynchronize", end - 0.0012, 1.2, stack_hash=line)
    return diagnosed_file(path)


def test_a_loop_that_has_always_waited_at_several_lines_is_told_from_zero(tmp_path: Path) -> None:
    """Of three waits a step one is the step's own: two thirds of the time in which the GPU is empty."""
    diagnosis = always_reading(tmp_path)
    assert causes(diagnosis) == ["unexpected-sync"]
    (incident,) = diagnosis.incidents
    assert incident.kind is FindingKind.BOTTLENECK
    assert incident.lost_ratio == pytest.approx(2 / 3 * 1.0 / PER_QUARTER_MS, rel=0.1)
    assert "to 3 GPU syncs per step, at log_loss() at /srv/job/train.py:110 and" in incident.summary


def test_a_wait_costs_no_more_than_the_gpu_is_idle_after_it(tmp_path: Path) -> None:
    """A server waits for the copy of a request and at once launches: it is idle after the result of the one before."""
    path = tmp_path / "server.db"
    phases = (
        Phase(step=Step(idle_ms=1.4, launch_ms=0.02, busy_ms=0.34, launches=0), sync_op="cudaMemcpy"),
        Phase(step=Step(idle_ms=0.05, launch_ms=0.3, busy_ms=4.0, launches=20), sync_op="cudaStreamSynchronize"),
    )
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        server = run.process(100, "python")
        lines = [run.stack((("/srv/job/serve.py", line, "answer"),)) for line in (20, 30)]
        for begin, _, end in run.cycle(server, 0, LENGTH_S, phases):
            run.call(server, "cudaMemcpy", begin - 0.00034, 0.34, stack_hash=lines[0])
            run.call(server, "cudaStreamSynchronize", end - 0.0037, 3.7, stack_hash=lines[1])
    assert "unexpected-sync" not in causes(diagnosed_file(path))


def test_a_loop_that_waits_at_one_line_waits_for_its_step(tmp_path: Path) -> None:
    assert "unexpected-sync" not in causes(always_reading(tmp_path, lines=1))


@pytest.mark.parametrize(("norms", "is_said"), [(8, True), (1, False)])
def test_a_line_that_waits_many_times_in_a_step_is_named_where_steps_are_known(
    tmp_path: Path, norms: int, is_said: bool
) -> None:
    """`.item()` of each gradient's norm: of its waits and the step's own all but the costliest are too many."""
    path = tmp_path / "norms.db"
    body = Phase(step=Step(idle_ms=0.1, launch_ms=1.0, busy_ms=4.0, launches=150, noise=0.0))
    norm = Phase(step=Step(idle_ms=0.3, launch_ms=0.05, busy_ms=0.4, launches=1, noise=0.0))
    lines = [("/srv/job/train.py", 110, "log_norms"), ("/srv/job/train.py", 120, "log_loss")]
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        stacks = [run.stack((line,)) for line in lines]
        for begin, _, end in run.cycle(trainer, 0, LENGTH_S, [*[norm] * norms, body]):
            run.call(trainer, "cudaStreamSynchronize", end - 0.003, 3.0, stack_hash=stacks[1])
            for number in range(norms):
                at_s = begin - NORM_MS / 1000 * number
                run.call(trainer, "cudaStreamSynchronize", at_s - 0.00035, 0.35, stack_hash=stacks[0])
        whole = RepeatedStep(host_ms=BODY_MS + NORM_MS * norms, launches=150 + norms, noise=0.0)
        add_steps(run, trainer, 0, LENGTH_S, whole)
    incidents = [one for one in diagnosed_file(path).incidents if one.cause == "unexpected-sync"]
    assert len(incidents) == is_said
    for incident in incidents:
        assert incident.line is not None
        assert incident.line.function == "log_norms"
        assert incident.lost_ratio == pytest.approx(norms * 0.3 / (BODY_MS + NORM_MS * norms), rel=0.15)
        assert f"to {norms + 1} GPU syncs per step" in incident.summary


def test_a_step_by_repetition_may_have_several_iterations_that_each_wait(tmp_path: Path) -> None:
    """Four batches and one of another kind make the period: a wait at the end of each is none too many."""
    path = tmp_path / "turns.db"
    batch = Phase(step=Step(idle_ms=0.8, launch_ms=0.5, busy_ms=2.0, launches=40, noise=0.0))
    other = Phase(step=Step(idle_ms=0.8, launch_ms=0.5, busy_ms=2.5, launches=60, noise=0.0))
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        line = run.stack((("/srv/job/train.py", 110, "log_loss"),))
        for _, _, end in run.cycle(trainer, 0, LENGTH_S, [*[batch] * 4, other]):
            run.call(trainer, "cudaStreamSynchronize", end - 0.002, 2.0, stack_hash=line)
        add_steps(run, trainer, 0, LENGTH_S, RepeatedStep(host_ms=4 * 2.85 + 3.35, launches=220, noise=0.0))
    assert "unexpected-sync" not in causes(diagnosed_file(path))


def test_a_host_that_needs_longer_than_the_device_would_be_late_anyway(tmp_path: Path) -> None:
    slow = Step(idle_ms=2.0, launch_ms=0.3, busy_ms=1.5, launches=20, size_bytes=1 << 18)
    assert "unexpected-sync" not in causes(always_reading(tmp_path, step=slow))
