"""gil: sleeps of one switch interval that another thread of the process ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.events import INTERPRETER_LOCK
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

HOLDER = 105
METRICS = (("/srv/job/metrics.py", 7, "count"),)


def contended(run: ScriptedRun, trainer: Actor, naps_ms: float) -> None:
    """Each step sleeps three times before its first launch, then a thread of the process hands over."""
    asleep = 3 * (naps_ms + 0.1) + 2
    steps = run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=0.5 + asleep, idle={"sleep": asleep}))
    for begin, first, _ in steps:
        now = begin
        for _nap in range(3):
            run.off_cpu(trainer, now, now + naps_ms / 1e3, "sleep", waker="timer")
            now += (naps_ms + 0.1) / 1e3
        run.off_cpu(trainer, now, now + 0.002, "sleep", waker=Actor(number=trainer.number, pid=HOLDER, name="hog"))
        run.off_cpu(trainer, now + 0.0021, now + 0.0024, "runq", tid=HOLDER, culprit=(1, "x"))
        assert now + 0.002 <= first


def test_waits_of_one_switch_interval_are_the_interpreter_lock(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: contended(run, trainer, 5.06))
    assert causes(diagnosis) == ["gil"]
    assert diagnosis.incidents[0].lost_ratio > 0.6


LOCK, OTHER_LOCK = 0x7F0000001028, 0x7F0000002040


def handed_over_at_once(run: ScriptedRun, trainer: Actor, place: int) -> None:
    """Each step waits 2 ms for what a thread of the process holds."""
    holder = Actor(number=trainer.number, pid=HOLDER, name="hog")
    for begin, first, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=2.6, idle={"sleep": 2.0})):
        run.off_cpu(trainer, begin, begin + 0.002, "sleep", waker=holder, futex=place)
        run.off_cpu(trainer, begin + 0.0021, begin + 0.0024, "runq", tid=HOLDER, culprit=(1, "x"))
        assert begin + 0.002 <= first


def beside_whole_intervals(run: ScriptedRun, trainer: Actor, place: int) -> None:
    """The same, and a third thread waits out whole switch intervals."""
    handed_over_at_once(run, trainer, place)
    for tenth in range(10 * int(QUIET_S), 10 * int(LENGTH_S)):
        for nap in range(2):
            at_s = tenth / 10 + nap * 0.0052
            run.off_cpu(trainer, at_s, at_s + 0.00506, "sleep", waker="timer", tid=HOLDER + 1, futex=LOCK)


def test_shorter_waits_are_where_whole_switch_intervals_are_waited_out(tmp_path: Path) -> None:
    """At either word of the condition variable."""
    diagnosis = diagnosed(tmp_path, lambda run, trainer: beside_whole_intervals(run, trainer, LOCK + 4))
    assert causes(diagnosis) == ["gil"]
    assert [one.name for one in diagnosis.incidents[0].culprits] == ["hog"]


def kept_inside_a_call(run: ScriptedRun, trainer: Actor, *, tid: int = HOLDER) -> None:
    """Each step waits 20 ms for a lock that another thread keeps while it is in a call for 21 ms."""
    stack = run.stack([("/app/watch.py", 35, "destroy_event")])
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=20.6, idle={"sleep": 20.0})):
        for nap in range(4):
            at_s = begin + 0.005 * nap
            run.off_cpu(trainer, at_s, at_s + 0.00498, "sleep", waker="timer", futex=LOCK | INTERPRETER_LOCK)
        run.off_cpu(trainer, begin - 0.001, begin + 0.02, "sleep", waker="interrupt", tid=HOLDER, is_gpu_call=True)
        run.call(trainer, "cudaStreamSynchronize", begin - 0.001, 21, tid=tid, stack_hash=stack)


def test_a_call_that_keeps_the_lock_is_named_with_its_line(tmp_path: Path) -> None:
    (incident,) = diagnosed(tmp_path, kept_inside_a_call).incidents
    assert incident.cause == "gil"
    held = "held by its thread python inside cudaStreamSynchronize, destroy_event() at /app/watch.py:35"
    assert held in incident.summary
    assert "release the GIL while cudaStreamSynchronize waits" in incident.fixes[0].text


def test_a_call_of_the_thread_that_waits_does_not_keep_the_lock(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: kept_inside_a_call(run, trainer, tid=trainer.pid))
    assert "inside" not in diagnosis.incidents[0].summary


def test_short_waits_at_the_interpreters_own_lock_need_no_signature(tmp_path: Path) -> None:
    place = LOCK | INTERPRETER_LOCK
    diagnosis = diagnosed(tmp_path, lambda run, trainer: handed_over_at_once(run, trainer, place))
    assert causes(diagnosis) == ["gil"]
    assert [one.name for one in diagnosis.incidents[0].culprits] == ["hog"]


def test_waits_at_another_place_are_for_another_lock(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: beside_whole_intervals(run, trainer, OTHER_LOCK))
    assert "gil" not in causes(diagnosis)


def test_naps_of_another_length_are_not(tmp_path: Path) -> None:
    assert "gil" not in causes(diagnosed(tmp_path, lambda run, trainer: contended(run, trainer, 2.0)))


def test_without_intervals_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"offcpu": "--offcpu=false"})
    assert "gil" in {one.cause for one in diagnosis.not_evaluated}


def test_the_line_of_the_thread_that_held_it_is_named(tmp_path: Path) -> None:
    def sampled(run: ScriptedRun, trainer: Actor) -> None:
        contended(run, trainer, 5.06)
        for tenth in range(10 * int(QUIET_S), 10 * int(LENGTH_S)):
            for ms in (0, 20, 40):
                run.sample(trainer, tenth / 10 + ms / 1e3, METRICS, tid=HOLDER)

    incident = diagnosed(tmp_path, sampled).incidents[0]
    assert str(incident.line) == "count() at /srv/job/metrics.py:7"
    assert [one.name for one in incident.culprits] == ["hog"]


def test_a_loop_that_polls_every_5_ms_is_no_lock(tmp_path: Path) -> None:
    def polling(run: ScriptedRun, trainer: Actor) -> None:
        """One to four looks before each step, while the other threads sleep, too."""
        now, looks = QUIET_S, 1
        while now < LENGTH_S:
            step = Step(idle_ms=0.5 + 5.06 * looks, idle={"sleep": 5.06 * looks})
            ((begin, _, now),) = run.train(trainer, now, now + 1e-6, step)
            run.off_cpu(trainer, begin, now, "sleep", waker="timer", tid=HOLDER)
            for look in range(looks):
                at_s = begin + look * 0.00506
                run.off_cpu(trainer, at_s, at_s + 0.00506, "sleep", waker="timer")
            looks = looks % 4 + 1

    assert causes(diagnosed(tmp_path, polling)) == []


def test_waits_for_it_between_launches_are_found(tmp_path: Path) -> None:
    def between_launches(run: ScriptedRun, trainer: Actor) -> None:
        """The GPU works off its queue while the second half of the launches waits 10 ms for the lock."""
        step = Step(launch_ms=12.0, busy_ms=17.0, launch={"sleep": 10.2})
        holder = Actor(number=trainer.number, pid=HOLDER, name="hog")
        for _, first, _ in run.train(trainer, QUIET_S, LENGTH_S, step):
            now = first + 0.001
            run.off_cpu(trainer, now, now + 0.00506, "sleep", waker="timer")
            run.off_cpu(trainer, now + 0.0051, now + 0.0102, "sleep", waker=holder)
            run.off_cpu(trainer, now + 0.0103, now + 0.0105, "runq", tid=HOLDER, culprit=(1, "x"))

    assert causes(diagnosed(tmp_path, between_launches)) == ["gil"]


@pytest.mark.parametrize(("share", "found"), [(0.6, ["gil"]), (0.3, [])])
def test_of_a_loss_by_several_things_the_one_that_owns_most_is_named(
    tmp_path: Path, share: float, found: list[str]
) -> None:
    """6% lost for a while, none of it 3%: to the lock by its share, the rest to threads of the job."""
    lost_ms = 0.4
    lock_ms, crowd_ms = share * lost_ms, (1 - share) * lost_ms

    def both(run: ScriptedRun, trainer: Actor) -> None:
        holder = Actor(number=trainer.number, pid=HOLDER, name="hog")
        step = Step(
            idle_ms=0.5 + lock_ms, idle={"sleep": lock_ms}, return_delay_ms=0.05 + crowd_ms, sync={"runq": crowd_ms}
        )
        steps = run.train(trainer, QUIET_S, LENGTH_S, step)
        for begin, _, _ in steps:
            run.off_cpu(trainer, begin, begin + lock_ms / 1e3, "sleep", waker=holder, futex=LOCK)
        for second in range(int(QUIET_S), int(LENGTH_S)):
            waited_ms = crowd_ms * sum(int(end) == second for _, _, end in steps)
            run.culprit(trainer, trainer.pid, trainer.name, second, waited_ms)
        for nap in range(4):
            at_s = QUIET_S + nap * 0.0052
            run.off_cpu(trainer, at_s, at_s + 0.00506, "sleep", waker="timer", tid=HOLDER + 1, futex=LOCK)

    assert causes(diagnosed(tmp_path, both)) == found
