"""memory-pressure: fires for reclaim on the critical path and for reading again; beside the path it costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.events import HostFlag
from ingero.ops import HostOp, IoOp
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file

RECLAIM_MS = 3.0
LIMITED = int(HostFlag.MEMCG_LIMIT)


def reclaiming(run: ScriptedRun, trainer: Actor) -> None:
    """The trainer frees memory of its own group before each step."""
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=0.5 + RECLAIM_MS)):
        reclaimed = {"arg0": 1 << 20, "flags": LIMITED}
        run.host_event(HostOp.DIRECT_RECLAIM, begin + 0.0002, actor=trainer, ms=RECLAIM_MS, **reclaimed)


def test_reclaim_on_the_path_is_charged_with_the_limit(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, reclaiming, cgroup_id=5)
    assert causes(diagnosis) == ["memory-pressure"]
    incident = diagnosis.incidents[0]
    assert incident.evidence["limit"] == "cgroup"
    assert incident.lost_ratio == pytest.approx(RECLAIM_MS / (6.55 + RECLAIM_MS), rel=0.05)
    assert "its cgroup" in incident.summary


def test_reclaim_that_is_tried_again_and_again_is_charged_whether_it_runs_or_waits(tmp_path: Path) -> None:
    def retrying(run: ScriptedRun, trainer: Actor) -> None:
        """Before each step twelve times 0.48 ms, 15 us apart; in four of them the thread waits in the kernel."""
        step = Step(idle_ms=0.5 + 6, idle={"uninterruptible": 1.92})
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, step):
            for number in range(12):
                at = begin + 0.0002 + number * 0.000495
                run.host_event(HostOp.DIRECT_RECLAIM, at, actor=trainer, ms=0.48, arg0=1 << 20, flags=LIMITED)
                if number % 3 == 0:
                    run.off_cpu(trainer, at, at + 0.00048, "uninterruptible")

    (incident,) = diagnosed(tmp_path, retrying).incidents
    assert incident.cause == "memory-pressure"
    assert incident.lost_ratio == pytest.approx(6 / 12.55, rel=0.05)
    assert incident.explained_ratio > 0.95


def test_of_a_loss_just_long_enough_to_be_told_only_what_made_most_of_it_is_named(tmp_path: Path) -> None:
    def briefly(run: ScriptedRun, trainer: Actor) -> None:
        """A second of reclaim, 0.55 ms a step, beside somebody who keeps a finished wait from returning for 0.3 ms."""
        step = Step(idle_ms=0.5 + 0.55, return_delay_ms=0.35, sync={"runq": 0.3, "sleep": 5.0})
        for begin, _, _ in run.train(trainer, QUIET_S, QUIET_S + 1, step):
            run.host_event(HostOp.DIRECT_RECLAIM, begin + 0.0002, actor=trainer, ms=0.55, flags=LIMITED)
        run.culprit(trainer, 900, "backup", int(QUIET_S), 45, switches=100)
        run.train(trainer, QUIET_S + 1, LENGTH_S, Step())

    (incident,) = diagnosed(tmp_path, briefly).incidents
    assert incident.cause == "memory-pressure"
    assert incident.lost_ns == pytest.approx(0.55e6 * 1000 / 7.4, rel=0.1)


def test_a_worker_that_reads_again_what_was_evicted_is_under_pressure(tmp_path: Path) -> None:
    def thrashing(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=20.5, idle={"sleep": 20})):
            run.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=worker)
            run.off_cpu(worker, begin + 0.001, begin + 0.019, "io", waker="block")
            run.host_event(IoOp.READ, begin + 0.002, actor=worker, ms=16, arg0=1 << 20, arg2=8 << 20)
            run.host_event(HostOp.DIRECT_RECLAIM, begin + 0.0005, actor=worker, ms=0.2, arg0=1 << 20, flags=LIMITED)

    diagnosis = diagnosed(tmp_path, thrashing)
    assert causes(diagnosis) == ["memory-pressure"]
    assert "rereading evicted pages" in diagnosis.incidents[0].summary
    assert diagnosis.incidents[0].lost_ratio == pytest.approx(18 / 26.55, rel=0.1)


def test_reclaim_in_the_shadow_of_the_device_costs_nothing(tmp_path: Path) -> None:
    def hidden(run: ScriptedRun, trainer: Actor) -> None:
        for _, first, _ in run.train(trainer, QUIET_S, LENGTH_S, Step()):
            run.host_event(HostOp.DIRECT_RECLAIM, first + 0.0015, actor=trainer, ms=RECLAIM_MS, flags=LIMITED)

    assert causes(diagnosed(tmp_path, hidden)) == []


def test_others_that_reclaim_are_no_reason(tmp_path: Path) -> None:
    def beside(run: ScriptedRun, trainer: Actor) -> None:
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=0.5 + RECLAIM_MS)):
            run.host_event(HostOp.DIRECT_RECLAIM, begin, ms=RECLAIM_MS, pid=900, tid=900)

    assert causes(diagnosed(tmp_path, beside)) == ["unexplained"]


def test_without_host_events_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, reclaiming, not_traced={"HOST": "switched off (host)"})
    assert causes(diagnosis) == ["unexplained"]
    assert "memory-pressure" in {one.cause for one in diagnosis.not_evaluated}


def test_workers_of_earlier_passes_are_not_counted(tmp_path: Path) -> None:
    def passes(run: ScriptedRun, trainer: Actor) -> None:
        """Four workers in each of three passes of two seconds."""
        reclaiming(run, trainer)
        for number in range(12):
            begin_s = QUIET_S + number // 4 * 2
            run.process(101 + number, "pt_data_worker", parent=trainer, start_s=begin_s, exit_ns=run.at(begin_s + 2))

    (incident,) = diagnosed(tmp_path, passes, cgroup_id=5).incidents
    assert incident.fixes[-1].command == "DataLoader(num_workers=2, prefetch_factor=1)"


def test_reclaim_that_was_always_there_is_no_reason(tmp_path: Path) -> None:
    """1 ms of reclaim in each step, as ever; then 3 ms of tokenizing more."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python", cgroup_id=5)
        steps = run.train(trainer, 0, QUIET_S, Step(idle_ms=2.0))
        slow = run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=5.0))
        for begin, _, _ in steps + slow:
            run.host_event(HostOp.DIRECT_RECLAIM, begin + 0.0002, actor=trainer, ms=1.0, arg0=1 << 20, flags=LIMITED)
        for begin, _, _ in slow[::6]:
            run.sample(trainer, begin + 0.003, (("/srv/job/tokens.py", 46, "tokenize"),))
    assert causes(diagnosed_file(path)) == ["host-bound"]
