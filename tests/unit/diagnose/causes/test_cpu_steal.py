"""cpu-steal: what a hypervisor took, second by second; what it cannot have made has another reason, or none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import Diagnosis
from ingero.ops import HostOp
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

SLOW = Step(busy_ms=12)  # 6 of 12.55 ms more


def slower(run: ScriptedRun, trainer: Actor, *, steal: float, before: float = 0.0, step: Step = SLOW) -> None:
    """From QUIET_S on; so much of each CPU was stolen then, and before."""
    run.train(trainer, QUIET_S, LENGTH_S, step)
    run.cpus(0, int(QUIET_S), (0.2, 0.1), steal=before)
    run.cpus(int(QUIET_S), int(LENGTH_S), (0.2, 0.1), steal=steal)


def diagnosis(tmp_path: Path, steal: float, before: float = 0.0, step: Step = SLOW) -> Diagnosis:
    return diagnosed(tmp_path, lambda run, trainer: slower(run, trainer, steal=steal, before=before, step=step))


@pytest.mark.parametrize("step", [SLOW, Step(idle_ms=6.3, idle={"run": 6.0})])
def test_time_lost_while_the_hypervisor_ran_others_is_stolen(tmp_path: Path, step: Step) -> None:
    found = diagnosis(tmp_path, 0.6, step=step)
    assert causes(found) == ["cpu-steal"]
    assert found.incidents[0].lost_ratio == pytest.approx(6 / 12.55, rel=0.05)
    assert "60% of a CPU was stolen (baseline 0.0%)" in found.incidents[0].summary


def test_no_more_is_charged_than_was_stolen(tmp_path: Path) -> None:
    (incident,) = (one for one in diagnosis(tmp_path, 0.4).incidents if one.cause == "cpu-steal")
    assert incident.lost_ratio == pytest.approx(0.4, rel=0.05)


@pytest.mark.parametrize(("steal", "before"), [(0.01, 0.0), (0.6, 0.6)])
def test_what_was_not_stolen_or_always_was_is_no_reason(tmp_path: Path, steal: float, before: float) -> None:
    assert causes(diagnosis(tmp_path, steal, before)) == ["gpu-slower"]


def in_turns(tmp_path: Path, steal: float, step: Step) -> list[str]:
    """From QUIET_S on every third tenth of a second is slower, and so much of each CPU was stolen."""

    def slower_in_turns(run: ScriptedRun, trainer: Actor) -> None:
        for part in range(round((LENGTH_S - QUIET_S) * 10)):
            begin_s = QUIET_S + part / 10
            run.train(trainer, begin_s, begin_s + 0.1, Step() if part % 3 else step)
        run.cpus(0, int(QUIET_S), (0.2, 0.1))
        run.cpus(int(QUIET_S), int(LENGTH_S), (0.2, 0.1), steal=steal)

    return causes(diagnosed(tmp_path, slower_in_turns))


def test_a_part_that_may_have_been_stolen_leaves_the_device_without_a_verdict(tmp_path: Path) -> None:
    assert in_turns(tmp_path, 0.15, Step(busy_ms=18)) == ["unexplained"]


@pytest.mark.parametrize(("steal", "expected"), [(0.08, ["gpu-slower"]), (0.3, ["cpu-steal"])])
def test_what_every_step_lost_alike_was_not_stolen_now_and_then(
    tmp_path: Path, steal: float, expected: list[str]
) -> None:
    """6% of the time is lost: where a tenth of a CPU is stolen some steps lose more, and some nothing."""
    assert causes(diagnosis(tmp_path, steal, step=Step(busy_ms=6.5))) == expected


def test_what_some_steps_lost_was_stolen(tmp_path: Path) -> None:
    assert in_turns(tmp_path, 0.08, Step(busy_ms=7.5)) == ["cpu-steal"]


def test_without_cpu_seconds_it_is_not_evaluated(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"cpu_seconds": "an older recording"})
    assert "cpu-steal" in {one.cause for one in found.not_evaluated}


PAUSE_MS = 18.0
RARE_S = 0.1  # a pause each


def pausing(run: ScriptedRun, trainer: Actor, *, late_ms: float = 12.0, moved_ms: float = 0.0) -> None:
    """From QUIET_S on the machine is paused each RARE_S, as a device's work ends; no steal clock tells.

    late_ms: how late the timer was that was due in it; 0: none was. moved_ms: how long before the wait's end it came.
    """
    run.cpus(0, int(LENGTH_S), (0.2, 0.1))
    for begin_s in np.arange(QUIET_S, LENGTH_S - RARE_S, RARE_S):
        ((_, first, end),) = run.train(trainer, begin_s, begin_s + 0.001, Step(busy_ms=6 + PAUSE_MS))
        run.train(trainer, end, begin_s + RARE_S - 0.001, Step())
        if late_ms:
            ended_s = end - 0.05e-3 - moved_ms / 1e3
            run.host_event(HostOp.LATE_TIMER, ended_s - late_ms / 1e3, ms=late_ms, arg1=0)
            assert ended_s - late_ms / 1e3 > first


def test_a_device_that_was_ready_as_a_pause_ended_was_not_slower(tmp_path: Path) -> None:
    (incident,) = diagnosed(tmp_path, pausing).incidents
    assert incident.cause == "cpu-steal"
    assert incident.lost_ratio == pytest.approx(PAUSE_MS / (1e3 * RARE_S), rel=0.15)
    assert incident.explained_ratio > 0.9
    assert "timers of its kernel came up to 12.0 ms late" in incident.summary


def test_another_timer_may_come_a_little_later_than_what_ended_the_wait(tmp_path: Path) -> None:
    """On another CPU, due within the same pause."""

    def two_late(run: ScriptedRun, trainer: Actor) -> None:
        pausing(run, trainer)
        for begin_s in np.arange(QUIET_S, LENGTH_S - RARE_S, RARE_S):
            ended_s = begin_s + (Step().idle_ms + 6 + PAUSE_MS) / 1e3 - 0.05e-3
            run.host_event(HostOp.LATE_TIMER, ended_s + 1.5e-3 - 14e-3, ms=14.0, arg1=1)

    (incident,) = diagnosed(tmp_path, two_late).incidents
    assert incident.cause == "cpu-steal"
    assert incident.explained_ratio > 0.9


def test_a_pause_at_another_time_is_no_reason(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, lambda run, trainer: pausing(run, trainer, moved_ms=5))
    assert "cpu-steal" not in causes(found)


def test_work_that_a_pause_made_longer_was_held_up(tmp_path: Path) -> None:
    def paused(run: ScriptedRun, trainer: Actor) -> None:
        """8 ms of each step before its first launch, in which a timer came 7 ms late."""
        run.cpus(0, int(LENGTH_S), (0.2, 0.1))
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5)):
            run.host_event(HostOp.LATE_TIMER, begin + 0.001, ms=7.5)

    (incident,) = diagnosed(tmp_path, paused).incidents
    assert incident.cause == "cpu-steal"
    assert incident.lost_ratio == pytest.approx(7.5 / 14.55, rel=0.05)


def test_single_steps_that_took_longer_do_not_make_a_device_slower(tmp_path: Path) -> None:
    """Nothing tells why; the GPU was as fast as ever before and after each."""
    assert causes(diagnosed(tmp_path, lambda run, trainer: pausing(run, trainer, late_ms=0))) == ["unexplained"]
