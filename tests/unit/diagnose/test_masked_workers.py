"""Data workers that became too slow while something else makes the loop as slow: told with what they would cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import Diagnosis, FindingKind
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed_file

USUAL = Step()  # 6.55 ms
SLOWER = Step(busy_ms=9)  # 9.55 ms: the GPU
STORAGE = (("/srv/job/images.py", 29, "wait_for_storage"), ("/srv/job/images.py", 20, "__getitem__"))


def slow_device(folder: Path, worker_ms: float, *, usual_ms: float = 2.5, name: str = "pt_data_worker") -> Diagnosis:
    """The GPU becomes slower; a worker is busy so long for each step, usually on a CPU, then asleep on a timer."""
    path = folder / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        worker = run.process(101, name, parent=trainer)
        for begin, _, end in run.train(trainer, 0, QUIET_S, USUAL):
            run.off_cpu(worker, begin + usual_ms / 1000, end, "sleep", waker=trainer)
        for number, (begin, _, end) in enumerate(run.train(trainer, QUIET_S, LENGTH_S, SLOWER)):
            _sleep_and_wait(run, worker, trainer, begin, begin + worker_ms / 1000, end)
            if number % 10 == 0:
                run.sample(worker, begin + 0.002, STORAGE, state="sleep", ms=50)
    return diagnosed_file(path)


def _sleep_and_wait(
    run: ScriptedRun, worker: Actor, trainer: Actor, begin_s: float, done_s: float, end_s: float
) -> None:
    """2 ms on a CPU, a pause until it is done, and a wait for the loop, where there is time left for one."""
    run.off_cpu(worker, begin_s + 0.002, done_s, "sleep", waker="timer")
    if end_s - done_s > 0.0005:
        run.off_cpu(worker, done_s + 0.0001, end_s, "sleep", waker=trainer)


def test_a_worker_that_the_loop_will_wait_for_is_told_beside_the_device(tmp_path: Path) -> None:
    diagnosis = slow_device(tmp_path, 8.5)
    assert sorted(causes(diagnosis)) == ["data-starvation", "gpu-slower"]
    hidden = next(one for one in diagnosis.incidents if one.cause == "data-starvation")
    assert (hidden.kind, hidden.lost_ns, hidden.culprits[0].pid) == (FindingKind.EVENT, 0, 101)
    assert hidden.evidence["worker was"] == "asleep"
    assert hidden.evidence["would cost (ratio)"] == pytest.approx((8.6 - 6.55) / 9.55, rel=0.1)
    assert str(hidden.line) == "wait_for_storage() at /srv/job/images.py:29"


def test_a_worker_that_still_keeps_up_with_the_loop_at_its_best_is_not_told(tmp_path: Path) -> None:
    assert causes(slow_device(tmp_path, 6.0)) == ["gpu-slower"]


def test_a_worker_that_had_no_time_left_in_the_healthy_loop_is_not_told(tmp_path: Path) -> None:
    assert causes(slow_device(tmp_path, 8.5, usual_ms=6.5)) == ["gpu-slower"]


def test_a_slow_child_that_makes_no_data_is_not_told(tmp_path: Path) -> None:
    assert causes(slow_device(tmp_path, 8.5, name="logger")) == ["gpu-slower"]


def test_a_worker_that_may_still_be_asleep_does_not_work(tmp_path: Path) -> None:
    """Two healthy steps after a hang of the GPU, before the interval in which the worker waited is recorded."""
    path, hung_s = tmp_path / "scene.db", LENGTH_S - 0.014
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        worker = run.process(101, "pt_data_worker", parent=trainer)
        for begin, _, end in run.train(trainer, 0, QUIET_S, USUAL):
            run.off_cpu(worker, begin + 0.0025, end, "sleep", waker=trainer)
        run.off_cpu(worker, QUIET_S + 0.002, QUIET_S + 0.004, "sleep", waker=trainer)
        run.train(trainer, QUIET_S, hung_s, Step(busy_ms=(hung_s - QUIET_S) * 1000 - 0.55))
        run.train(trainer, hung_s, LENGTH_S, USUAL)
    assert "data-starvation" not in causes(diagnosed_file(path))
