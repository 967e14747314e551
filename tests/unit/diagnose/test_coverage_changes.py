"""An interval in which tracing changed is compared with others where all of its work was traced, and with none else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.events import SyncIntervalFlag
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, diagnosed, diagnosed_file

CHANGED = int(SyncIntervalFlag.COVERAGE_CHANGED)
OF_STEPS = CHANGED | int(SyncIntervalFlag.UNTIMED | SyncIntervalFlag.LAUNCHES_UNSEEN)
WAIT_S = 4.0


@pytest.mark.parametrize(("launches", "lost_s"), [(80, WAIT_S), (79, 0.0)])
def test_a_long_wait_within_which_tracing_changed_is_lost_time(tmp_path: Path, launches: int, lost_s: float) -> None:
    """With a launch less than all others some may not have been traced."""

    def waiting(run: ScriptedRun, trainer: Actor) -> None:
        long = Step(idle_ms=WAIT_S * 1e3, idle={"sleep": WAIT_S * 1e3}, launches=launches, flags=CHANGED)
        run.train(trainer, QUIET_S, QUIET_S + 0.001, long)
        run.train(trainer, QUIET_S + WAIT_S + 0.01, LENGTH_S, Step())

    incidents = diagnosed(tmp_path, waiting).incidents
    assert sum(one.lost_ns for one in incidents) / 1e9 == pytest.approx(lost_s, rel=0.02)


@pytest.mark.parametrize(("launches", "lost_s"), [(153, WAIT_S), (100, 0.0), (0, 0.0)])
def test_so_is_a_step_by_repetition_of_as_many_launches(tmp_path: Path, launches: int, lost_s: float) -> None:
    path = tmp_path / "steps.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        long = RepeatedStep(
            host_ms=WAIT_S * 1e3,
            host={"sleep": WAIT_S * 1e3 - 6},
            launches=launches,
            step_type="launches not traced, 1 copies, from cudaMemcpyAsync",
            flags=OF_STEPS,
            noise=0.0,
        )
        add_steps(run, trainer, 0, QUIET_S, RepeatedStep())
        add_steps(run, trainer, QUIET_S, QUIET_S + 0.001, long)
        add_steps(run, trainer, QUIET_S + WAIT_S, LENGTH_S, RepeatedStep())
    incidents = diagnosed_file(path).incidents
    assert sum(one.lost_ns for one in incidents) / 1e9 == pytest.approx(lost_s, rel=0.02)


def test_where_two_types_have_as_many_launches_it_is_not_known_which_it_is(tmp_path: Path) -> None:
    path = tmp_path / "steps.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        add_steps(run, trainer, 0, 3, RepeatedStep())
        add_steps(run, trainer, 3, QUIET_S, RepeatedStep(step_type="153 launches, 2 copies, from cudaMemcpyAsync"))
        long = RepeatedStep(host_ms=WAIT_S * 1e3, host={"sleep": 3990}, step_type="unknown", flags=OF_STEPS, noise=0.0)
        add_steps(run, trainer, QUIET_S, QUIET_S + 0.001, long)
        add_steps(run, trainer, QUIET_S + WAIT_S, LENGTH_S, RepeatedStep())
    assert diagnosed_file(path).incidents == ()
