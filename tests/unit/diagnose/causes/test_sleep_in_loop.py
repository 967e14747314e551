"""sleep-in-loop: the feeding thread's own sleeps, once a step; loops that poll are time without demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import FindingKind
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file

CALLBACK = (("/srv/job/callbacks.py", 12, "on_step"), ("/srv/job/train.py", 90, "main"))
USUAL = (("/srv/job/callbacks.py", 33, "on_begin"), ("/srv/job/train.py", 80, "main"))
GET = (("/usr/lib/python3.12/threading.py", 359, "wait"), ("/usr/lib/python3.12/queue.py", 180, "get"))


def pausing(run: ScriptedRun, trainer: Actor, begin_s: float = QUIET_S) -> None:
    """A callback sleeps 8 ms in each step."""
    steps = run.train(trainer, begin_s, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8}))
    for number, (begin, _, _) in enumerate(steps):
        run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker="timer")
        if number % 20 == 0:
            run.sample(trainer, begin + 0.004, CALLBACK, state="sleep", ms=250)


def test_a_pause_in_a_callback_is_named_with_its_line(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, pausing)
    assert causes(diagnosis) == ["sleep-in-loop"]
    incident = diagnosis.incidents[0]
    assert incident.lost_ratio == pytest.approx(8 / 14.55, rel=0.05)
    assert str(incident.line) == "on_step() at /srv/job/callbacks.py:12"


def test_pauses_that_were_looked_at_as_they_began_need_nobody_who_sees_them(tmp_path: Path) -> None:
    """0.7 ms in a callback, after 0.2 ms in another that makes no step longer than it was."""

    def napping(run: ScriptedRun, trainer: Actor) -> None:
        steps = run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=1.5, idle={"sleep": 0.9}))
        for begin, _, _ in steps:
            run.off_cpu(trainer, begin, begin + 0.0002, "sleep", waker="timer", stack=USUAL)
            run.off_cpu(trainer, begin + 0.0003, begin + 0.001, "sleep", waker="timer", stack=CALLBACK)

    diagnosis = diagnosed(tmp_path, napping)
    assert causes(diagnosis) == ["sleep-in-loop"]
    assert str(diagnosis.incidents[0].line) == "on_step() at /srv/job/callbacks.py:12"


def test_a_pause_from_the_first_second_on_is_a_bottleneck(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        pausing(run, run.process(100, "python"), 0)
    diagnosis = diagnosed_file(path)
    assert causes(diagnosis) == ["sleep-in-loop"]
    assert diagnosis.incidents[0].kind is FindingKind.BOTTLENECK


def test_a_loop_that_polls_for_work_is_silent(tmp_path: Path) -> None:
    def polling(run: ScriptedRun, trainer: Actor) -> None:
        """Work comes after one to five looks."""
        now, looks = QUIET_S, 1
        while now < LENGTH_S:
            step = Step(idle_ms=0.5 + 10 * looks, idle={"sleep": 10 * looks})
            ((begin, _, now),) = run.train(trainer, now, now + 1e-6, step)
            for look in range(looks):
                run.off_cpu(trainer, begin + look * 0.01, begin + look * 0.01 + 0.0099, "sleep", waker="timer")
            looks = looks % 5 + 1

    assert causes(diagnosed(tmp_path, polling)) == []


def test_without_intervals_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"offcpu": "--offcpu=false"})
    assert "sleep-in-loop" in {one.cause for one in diagnosis.not_evaluated}


def stalled(run: ScriptedRun, trainer: Actor, worker: Actor, begin_s: float, looks: int) -> float:
    """An item that comes half a second after so many looks of a second; answers the end of that step."""
    asleep_ms = 1000 * looks + 500
    step = Step(idle_ms=asleep_ms + 0.5, idle={"sleep": asleep_ms})
    ((begin, _, end),) = run.train(trainer, begin_s, begin_s + 1e-6, step)
    for look in range(looks):
        run.off_cpu(trainer, begin + look, begin + look + 0.9999, "sleep", waker="timer")
        run.sample(trainer, begin + look + 0.5, GET, state="sleep", ms=250)
    run.off_cpu(trainer, begin + looks, begin + looks + 0.5, "sleep", waker=worker)
    return end


def test_a_wait_for_an_item_that_looks_again_from_time_to_time_is_no_pause(tmp_path: Path) -> None:
    def hanging(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        run.train(trainer, stalled(run, trainer, worker, QUIET_S, 3), LENGTH_S, Step())

    assert "sleep-in-loop" not in causes(diagnosed(tmp_path, hanging))


def test_a_trainer_that_looks_again_from_time_to_time_does_not_poll_for_demand(tmp_path: Path) -> None:
    def hanging_twice(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        again = stalled(run, trainer, worker, QUIET_S, 2)
        run.train(trainer, again, again + 1, Step())
        run.train(trainer, stalled(run, trainer, worker, again + 1, 1), LENGTH_S, Step())

    (incident,) = diagnosed(tmp_path, hanging_twice).incidents
    assert incident.cause == "unexplained"
    assert incident.lost_ns == pytest.approx(3e9, rel=0.05)  # the last half second of each is data-starvation
