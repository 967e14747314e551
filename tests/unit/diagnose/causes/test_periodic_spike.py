"""periodic-spike: long steps at a regular distance with something in common; silent where either is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

SPIKE_MS = 200.0
SAVE = (("/srv/job/train.py", 88, "save_checkpoint"), ("/srv/job/train.py", 140, "main"))
OTHER = (("/srv/job/train.py", 12, "log"),)
REGULAR = (100, 100, 100, 100, 100, 100)
Name = Callable[[ScriptedRun, Actor, float], None]


def spiked(run: ScriptedRun, trainer: Actor, *, distances: Iterable[int] = REGULAR, name: Name | None = None) -> None:
    """Usual steps, with a long one after so many of them; `name` says what it was doing."""
    now = QUIET_S
    for distance in distances:
        now = run.train(trainer, now, now + distance * 6.55e-3 - 0.003, Step())[-1][2]
        long = Step(idle_ms=0.5 + SPIKE_MS, idle={"sleep": SPIKE_MS})
        begin, _, end = run.train(trainer, now, now + 0.001, long)[0]
        if name:
            name(run, trainer, begin)
        now = end
    run.train(trainer, now, LENGTH_S, Step())


def at_a_line(run: ScriptedRun, trainer: Actor, begin: float) -> None:
    """Two samples at the line that saves."""
    for after in (0.05, 0.15):
        run.sample(trainer, begin + after, SAVE, state="sleep", ms=100)


def in_a_call(run: ScriptedRun, trainer: Actor, begin: float) -> None:
    """One recorded call as long as the spike."""
    run.call(trainer, "cudaEventRecord", begin + 0.001, SPIKE_MS - 2, stack_hash=run.stack(SAVE))


def test_the_line_and_the_distance_are_named(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, partial(spiked, name=at_a_line))
    assert causes(diagnosis) == ["periodic-spike"]
    incident = diagnosis.incidents[0]
    assert str(incident.line) == "save_checkpoint() at /srv/job/train.py:88"
    assert incident.evidence["steps between spikes"] == pytest.approx(101, abs=1)
    assert incident.lost_ns == pytest.approx(len(REGULAR) * SPIKE_MS * 1e6, rel=0.05)


def test_a_call_that_all_spikes_have_is_named(tmp_path: Path) -> None:
    incident = diagnosed(tmp_path, partial(spiked, name=in_a_call)).incidents[0]
    assert (incident.cause, incident.line is not None) == ("periodic-spike", True)
    assert "in cudaEventRecord, save_checkpoint()" in incident.summary


def test_long_steps_without_a_rhythm_are_unexplained(tmp_path: Path) -> None:
    irregular = partial(spiked, distances=(40, 160, 70, 130, 30, 110), name=at_a_line)
    assert causes(diagnosed(tmp_path, irregular)) == ["unexplained"]


def test_a_spike_that_nothing_names_is_unexplained(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, spiked)) == ["unexplained"]


def test_spikes_at_ever_other_lines_have_no_name(tmp_path: Path) -> None:
    def anywhere(run: ScriptedRun, trainer: Actor, begin: float) -> None:
        run.sample(trainer, begin + 0.05, ((f"/srv/job/{begin}.py", 1, "f"), *OTHER), state="sleep", ms=100)

    assert causes(diagnosed(tmp_path, partial(spiked, name=anywhere))) == ["unexplained"]


def test_spikes_that_collect_garbage_wait_for_the_rule_of_that(tmp_path: Path) -> None:
    def collecting(run: ScriptedRun, trainer: Actor, begin: float) -> None:
        """Seen in four of six spikes: most of them, and too few samples for that rule."""
        if begin < QUIET_S + 4 * (0.655 + SPIKE_MS / 1000):
            run.sample(trainer, begin + 0.05, SAVE, is_collecting=True)

    assert causes(diagnosed(tmp_path, partial(spiked, name=collecting))) == ["unexplained"]


def test_without_sync_intervals_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"sync_intervals": "no return probes"})
    assert "periodic-spike" in {one.cause for one in diagnosis.not_evaluated}
