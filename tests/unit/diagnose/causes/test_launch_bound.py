"""launch-bound: the GPU waits for launches; slower launches that run ahead cost nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero import given_up
from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import Diagnosis
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file

SLOW = {"cudaLaunchKernel": (80.0, 0.1), "cudaStreamSynchronize": (1.0, 0.1)}


def test_launches_that_keep_the_device_waiting_are_named(tmp_path: Path) -> None:
    def slow(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(launch_ms=8.9, busy_ms=9.0), calls=SLOW)

    diagnosis = diagnosed(tmp_path, slow)
    assert causes(diagnosis) == ["launch-bound"]
    assert diagnosis.incidents[0].lost_ratio == pytest.approx(3 / 9.55, rel=0.05)


def test_launches_that_run_ahead_may_be_slow(tmp_path: Path) -> None:
    def hidden(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(launch_ms=5.5), calls=SLOW)

    assert causes(diagnosed(tmp_path, hidden)) == []


def test_without_exact_sums_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"op_stats": "launches only counted"})
    assert "launch-bound" in {one.cause for one in diagnosis.not_evaluated}


def test_launches_that_wait_for_a_full_queue_are_not_lost_time(tmp_path: Path) -> None:
    """A slower device makes the launches slower that wait for a place in its queue."""

    def full(run: ScriptedRun, trainer: Actor, us: float, begin_s: float, end_s: float) -> None:
        busy = 20_000 * us / 1e3
        waiting = busy - 1024 * us / 1e3
        calls = {"cudaLaunchKernel": (20_000.0, waiting / 20_000), "cudaStreamSynchronize": (1.0, busy - waiting)}
        run.train(trainer, begin_s, end_s, Step(busy_ms=busy, launch_ms=waiting, launches=20_000), calls=calls)

    with ScriptedRun(tmp_path / "full.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        full(run, trainer, 3, 0, QUIET_S)
        full(run, trainer, 6, QUIET_S, LENGTH_S)
    assert causes(diagnosed_file(tmp_path / "full.db")) == ["gpu-slower"]


def test_launches_in_which_the_thread_was_held_up_are_not_slower_ones(tmp_path: Path) -> None:
    """A hog runs amid the launches, each of which takes the CPU time that it always did."""

    def hogged(run: ScriptedRun, trainer: Actor) -> None:
        step = Step(launch_ms=8.9, busy_ms=9.0, launch={"runq": 3.5, "sleep": 4.4})
        steps = run.train(trainer, QUIET_S, LENGTH_S, step)
        for second in range(int(QUIET_S), int(LENGTH_S)):
            lost_ms = 3.5 * sum(int(end) == second for _, _, end in steps)
            run.op(trainer, "cudaLaunchKernel", second, 1, lost_ms, run_ns=0, runq_ns=int(lost_ms * 1e6))
            run.culprit(trainer, 900, "hog", second, lost_ms, switches=500)

    assert "launch-bound" not in causes(diagnosed(tmp_path, hogged))


def test_of_the_time_before_a_step_it_owns_one_launch(tmp_path: Path) -> None:
    """The others come while something is enqueued."""

    def starved(run: ScriptedRun, trainer: Actor) -> None:
        step = Step(idle_ms=3.5, launch_ms=8.9, busy_ms=9.0)
        run.train(trainer, QUIET_S, LENGTH_S, step, calls=SLOW)

    found = {one.cause: one for one in diagnosed(tmp_path, starved).incidents}
    (launches,) = [one for cause, one in found.items() if cause == "launch-bound"] or [None]
    steps = (LENGTH_S - QUIET_S) / 0.01245
    owned = launches.breakdown if launches else {}
    assert owned.get("idle.run", 0) <= steps * (0.1 - 0.005) * 1e6 * 1.05
    assert "unexplained" in found, "nobody was seen computing in the other 2.9 ms"


def without_durations(folder: Path, *, timed_until_s: float = 0.0, inside: bool = True) -> Diagnosis:
    """Launches take 4 ms more of each step from QUIET_S on; from timed_until_s on they are only counted."""
    path = folder / "untimed.db"
    line = [("/app/model.py", 7, "forward")]
    native = ("libcuda.so.1:cuLaunchKernel", "libcudart.so.12:cudaLaunchKernel") if inside else ()
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for time_s, text in ((0.0, ""), (timed_until_s, given_up.LAUNCHES_COUNTED.code)):
            run.append(tables.OVERHEAD_LEVELS, time_ns=run.at(time_s), level=3, not_traced=text, reason="too many")
        usual = {"cudaLaunchKernel": (80.0, 0.01), "cudaStreamSynchronize": (1.0, 5.0)}
        steps = run.train(trainer, 0, QUIET_S, Step(launch_ms=1.0), calls=usual)
        slow = run.train(trainer, QUIET_S, LENGTH_S, Step(launch_ms=9.9, busy_ms=10.0), calls=usual)
        for _, first, _ in steps[::20]:
            if first >= timed_until_s:
                run.sample(trainer, first + 0.0005, line, ms=10, native=native)
        for number, (_, first, _) in enumerate(slow):
            run.sample(trainer, first + 0.001 + number % 8 / 1000, line, ms=10, native=native)
    return diagnosed_file(path)


def test_launches_without_durations_are_named_by_samples_inside_them(tmp_path: Path) -> None:
    diagnosis = without_durations(tmp_path)
    assert causes(diagnosis) == ["launch-bound"]
    (incident,) = diagnosis.incidents
    assert "it was running inside launches, by" in incident.summary
    assert str(incident.line) == "forward() at /app/model.py:7"
    assert incident.lost_ratio == pytest.approx(4 / 10.55, rel=0.2)


def test_launches_that_had_durations_in_the_reference_are_compared_with_these(tmp_path: Path) -> None:
    assert causes(without_durations(tmp_path, timed_until_s=QUIET_S - 0.1)) == ["launch-bound"]


def test_samples_outside_launches_are_no_launches(tmp_path: Path) -> None:
    assert causes(without_durations(tmp_path, inside=False)) == ["host-bound"]
