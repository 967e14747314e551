"""stopped: names who did it; a process that never goes on is found, too; a hang is not a stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.ops import HostOp
from ingero.store.records import HaltLevel
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

STOP_S = 2.0


def stop(run: ScriptedRun, trainer: Actor) -> None:
    """Stopped in its sync for two seconds by pid 77."""
    run.process(77, "gdb")
    run.host_event(HostOp.STOP_SIGNAL, QUIET_S, actor=trainer, arg1=77, arg2=19)
    run.train(trainer, QUIET_S, QUIET_S + 0.001, Step(busy_ms=6 + STOP_S * 1e3, sync={"stopped": STOP_S * 1e3}))
    run.train(trainer, QUIET_S + STOP_S + 0.007, LENGTH_S, Step())


def test_the_sender_of_the_signal_is_named(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, stop)
    assert causes(diagnosis) == ["stopped"]
    assert [one.pid for one in diagnosis.incidents[0].culprits] == [77]
    assert diagnosis.incidents[0].lost_ns == pytest.approx(STOP_S * 1e9, rel=0.02)


def test_a_long_wait_for_the_device_is_no_stop(tmp_path: Path) -> None:
    def slow(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, QUIET_S + 0.001, Step(busy_ms=6 + STOP_S * 1e3))
        run.train(trainer, QUIET_S + STOP_S + 0.007, LENGTH_S, Step())

    assert "stopped" not in causes(diagnosed(tmp_path, slow))


def test_without_sync_intervals_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"sync_intervals": "no return probes"})
    assert "stopped" in {one.cause for one in diagnosis.not_evaluated}


def test_a_stopped_worker_that_the_loop_waited_for_is_named(tmp_path: Path) -> None:
    line = [("/job/data.py", 12, "load")]

    def stops(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        run.process(77, "bash")
        run.host_event(HostOp.STOP_SIGNAL, QUIET_S, actor=worker, arg1=77, arg2=19)
        run.train(trainer, QUIET_S, QUIET_S + 0.001, Step(idle_ms=STOP_S * 1e3, idle={"sleep": STOP_S * 1e3}))
        run.off_cpu(trainer, QUIET_S, QUIET_S + STOP_S, "sleep", waker=worker)
        run.off_cpu(worker, QUIET_S - 0.1, QUIET_S + STOP_S - 0.001, "stopped")
        run.sample(worker, QUIET_S + 1, line, state="stopped")
        run.train(trainer, QUIET_S + STOP_S + 0.007, LENGTH_S, Step())

    (incident,) = diagnosed(tmp_path, stops).incidents
    assert incident.cause == "stopped"
    assert incident.summary.startswith("pt_data_worker [101] was stopped for 2.00 s by bash [77]")
    assert incident.summary.endswith("load() at /job/data.py:12; python [100] waited for it")
    assert incident.lost_ns == pytest.approx(STOP_S * 1e9, rel=0.02)


def test_a_frozen_group_is_named_and_no_signal_is_sent_to_it(tmp_path: Path) -> None:
    def frozen(run: ScriptedRun, trainer: Actor) -> None:
        for second in range(int(QUIET_S), int(LENGTH_S)):
            run.second(trainer, second, stopped=1000)
        file = "/sys/fs/cgroup/docker-1/cgroup.freeze"
        run.halt(trainer, QUIET_S, LENGTH_S, "", level=HaltLevel.STOPPED, object=file, is_counted=False)

    (incident,) = diagnosed(tmp_path, frozen).incidents
    assert "was frozen for 6.00 s with its cgroup (/sys/fs/cgroup/docker-1/cgroup.freeze)" in incident.summary
    assert [fix.command for fix in incident.fixes] == ["echo 0 | sudo tee /sys/fs/cgroup/docker-1/cgroup.freeze"]
    assert incident.culprits == ()


def test_what_froze_it_at_another_time_is_not_named(tmp_path: Path) -> None:
    def stopped(run: ScriptedRun, trainer: Actor) -> None:
        run.halt(
            trainer, 1, 3, "", level=HaltLevel.STOPPED, object="/sys/fs/cgroup/job/cgroup.freeze", is_counted=False
        )
        for second in range(int(QUIET_S), int(LENGTH_S)):
            run.second(trainer, second, stopped=1000)

    (incident,) = diagnosed(tmp_path, stopped).incidents
    assert "freeze" not in incident.summary
    assert "kill -CONT" in incident.fixes[0].command


def sampled(run: ScriptedRun, trainer: Actor, profiler: Actor, *, every: int) -> None:
    """8 ms stopped before each step, of each `every`-th until the profiler lets it go on."""
    steps = run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"stopped": 8}))
    for number, (begin, _, _) in enumerate(steps):
        waker = profiler if number % every == 0 else None
        run.off_cpu(trainer, begin, begin + 0.008, "stopped", waker=waker)


def test_a_profiler_that_stops_it_for_each_sample_is_named(tmp_path: Path) -> None:
    profiler = Actor(number=0, pid=78, name="py-spy")
    diagnosis = diagnosed(tmp_path, lambda run, trainer: sampled(run, trainer, profiler, every=1))
    assert causes(diagnosis) == ["stopped"]
    (incident,) = diagnosis.incidents
    assert "times, each until py-spy [78] let it go on" in incident.summary
    assert [one.pid for one in incident.culprits] == [78]
    assert "--nonblocking" in incident.fixes[0].command


def test_who_ended_a_few_of_many_stops_is_not(tmp_path: Path) -> None:
    profiler = Actor(number=0, pid=78, name="py-spy")
    (incident,) = diagnosed(tmp_path, lambda run, trainer: sampled(run, trainer, profiler, every=4)).incidents
    assert incident.culprits == ()
    assert "py-spy" not in incident.summary


def test_a_debugger_is_named_by_what_was_seen_of_the_process(tmp_path: Path) -> None:
    def held(run: ScriptedRun, trainer: Actor) -> None:
        debugger = run.process(78, "gdb")
        for second in range(int(QUIET_S), int(LENGTH_S)):
            run.second(trainer, second, stopped=1000)
        run.halt(trainer, QUIET_S, LENGTH_S, "", level=HaltLevel.STOPPED, owners=[(debugger, "S")], is_counted=False)

    (incident,) = diagnosed(tmp_path, held).incidents
    assert "was stopped for 6.00 s by gdb (a debugger) [78]" in incident.summary
