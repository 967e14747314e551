"""What is lost while the recorder starts is its own doing, unless it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import AGENT_PID, BEGIN_NS, ScriptedRun, Step
from ingero.diagnose.live import LiveDiagnosis
from ingero.events import STATES
from ingero.store.reader import open_reader
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, causes, diagnosed_file

A_LITTLE = Step(return_delay_ms=1.0, sync={"runq": 1.0, "sleep": 5.0})  # 13% of the time
MUCH = Step(return_delay_ms=2.5, sync={"runq": 2.5, "sleep": 5.0})  # 27%
NOBODYS = Step(idle_ms=1.5, idle={"sleep": 1.2})


def slow_from_the_start(
    folder: Path, *, until_s: float, step: Step = A_LITTLE, cpu_user: tuple[int, str] = (900, "stress-ng")
) -> Path:
    """A program older than the recording, and a hog that is there from its first second on."""
    path = folder / "start.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, until_s, step)
        run.train(trainer, until_s, LENGTH_S, Step())
        for second in range(int(LENGTH_S)):
            if second < until_s and "runq" in step.sync:
                run.culprit(trainer, *cpu_user, second, 300, switches=100)
            clocks = {f"{name}_ns": 0 for name in STATES}
            run.append(tables.THREAD_STATE_SECONDS, start_ns=run.at(second), process=trainer.number, **clocks)
    return path


CASES = [
    (2.0, A_LITTLE, []),
    (2.8, A_LITTLE, []),
    (4.0, A_LITTLE, ["cpu-contention"]),
    (2.0, MUCH, ["cpu-contention"]),
    (2.8, NOBODYS, []),
    (8.0, NOBODYS, ["unexplained"]),
]


@pytest.mark.parametrize(("until_s", "step", "expected"), CASES)
def test_a_loss_of_the_first_seconds_is_told_if_it_goes_on_or_is_more_than_a_start_takes(
    tmp_path: Path, until_s: float, step: Step, expected: list[str]
) -> None:
    assert causes(diagnosed_file(slow_from_the_start(tmp_path, until_s=until_s, step=step))) == expected


def test_what_begins_soon_after_the_start_has_its_own_begin(tmp_path: Path) -> None:
    """Two seconds of the recorder's start and three quiet ones are no part of it."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for begin_s, end_s, step in ((0, 2, A_LITTLE), (2, 5, Step()), (5, 8, A_LITTLE), (8, LENGTH_S, Step())):
            for _, _, end in run.train(trainer, begin_s, end_s, step):
                run.culprit(trainer, 900, "stress-ng", int(end), step.sync.get("runq", 0.0))
        clocks = {f"{name}_ns": 0 for name in STATES}
        run.append(tables.THREAD_STATE_SECONDS, start_ns=run.at(0), process=trainer.number, **clocks)
    (incident,) = diagnosed_file(path).incidents
    assert incident.start_ns == pytest.approx(BEGIN_NS + 5e9, abs=0.2e9)
    assert incident.lost_ratio == pytest.approx(1 / 8.5, rel=0.1)


@pytest.mark.parametrize(("until_s", "expected"), [(4.0, []), (9.0, ["cpu-contention"])])
def test_what_the_recorder_takes_counts_since_it_has_started(
    tmp_path: Path, until_s: float, expected: list[str]
) -> None:
    """Of 530 ms of the first four seconds 330 are of its start; of nine, most is not."""
    path = slow_from_the_start(tmp_path, until_s=until_s, cpu_user=(AGENT_PID, "ingero"))
    assert causes(diagnosed_file(path)) == expected


@pytest.mark.parametrize(("until_s", "step", "expected"), CASES)
def test_so_it_is_while_recording(tmp_path: Path, until_s: float, step: Step, expected: list[str]) -> None:
    told: set[str] = set()
    with open_reader(slow_from_the_start(tmp_path, until_s=until_s, step=step)) as reader:
        diagnosis = LiveDiagnosis(reader, begin_ns=BEGIN_NS)
        last_ns = reader.counted_until_ns()
        for until_ns in range(BEGIN_NS + 1_000_000_000, last_ns + 1, 1_000_000_000):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(reader, "counted_until_ns", lambda until_ns=until_ns: until_ns)
                told |= {change.incident.cause for change in diagnosis.look()}
    assert told == set(expected)
