"""worker-restarts: workers that are born anew for each pass; those that stay, or come once, are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import BEGIN_NS, ScriptedRun, Step
from ingero.diagnose.findings import Diagnosis
from tests.unit.diagnose.causes.golden import LENGTH_S, causes, diagnosed_file

PAUSE_MS = 300.0
LINE = (("/app/train.py", 12, "run_epoch"),)


def passes(
    folder: Path, *, is_anew: bool = True, passes: int = 12, pause_ms: float = PAUSE_MS, started_s: float = 0.01
) -> Diagnosis:
    """Until its first batch each pass waits, asleep, for workers that have just been born.

    started_s: after the wait began, as /proc tells it, which is up to 10 ms too early.
    """
    path = folder / "passes.db"
    length_s = LENGTH_S / passes
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for number in range(passes):
            begin = number * length_s
            run.train(trainer, begin, begin + 1e-6, Step(idle_ms=pause_ms + 0.5, idle={"sleep": pause_ms}))
            run.train(trainer, begin + pause_ms / 1e3 + 0.008, begin + length_s, Step())
            for tick in range(1, 15):
                run.sample(trainer, begin + tick / 50, LINE, state="sleep")
            if is_anew or number == 0:
                if is_anew:
                    run._threads.add(200 + number)  # lives for too short a time for a list of its threads
                gone_ns = BEGIN_NS + int((begin + length_s) * 1e9) if is_anew else None
                worker = run.process(
                    200 + number, "pt_data_worker", parent=trainer, start_s=begin + started_s, exit_ns=gone_ns
                )
            run.off_cpu(trainer, begin, begin + pause_ms / 1e3, "sleep", waker=worker)
    return diagnosed_file(path)


@pytest.mark.parametrize("started_s", [0.01, -0.006])
def test_workers_that_are_made_anew_for_each_pass_are_named_with_the_option_that_keeps_them(
    tmp_path: Path, started_s: float
) -> None:
    """From the first second on: there is nothing to compare with."""
    diagnosis = passes(tmp_path, started_s=started_s)
    assert causes(diagnosis) == ["worker-restarts"]
    (incident,) = diagnosis.incidents
    assert incident.lost_ratio == pytest.approx(0.3, abs=0.03)
    assert "re-creating its 1 data workers for each pass over the data, 12 times" in incident.summary
    assert str(incident.line) == "run_epoch() at /app/train.py:12"
    assert incident.fixes[0].command == "DataLoader(persistent_workers=True)"


def test_workers_that_stay_are_late_and_not_made_anew(tmp_path: Path) -> None:
    assert causes(passes(tmp_path, is_anew=False)) == ["data-starvation"]


def test_passes_that_are_long_are_told_against_the_best_of_them(tmp_path: Path) -> None:
    """Three seconds each, of which one: the seconds without are the reference."""
    diagnosis = passes(tmp_path, passes=4, pause_ms=1000)
    assert set(causes(diagnosis)) == {"worker-restarts"}
    assert sum(one.lost_ns for one in diagnosis.incidents) == pytest.approx(4e9, rel=0.1)


def test_two_passes_are_a_training_and_an_evaluation(tmp_path: Path) -> None:
    assert "worker-restarts" not in causes(passes(tmp_path, passes=2))
