"""host-hang: no step any more and a wait that nobody ends; a pause, an idle server and a wait that ends are none."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import Diagnosis, Severity
from ingero.store.records import HaltLevel
from ingero.store.writing.tables import Value
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

LINE = [("/job/train.py", 40, "fetch"), ("/job/train.py", 90, "main")]


def told(tmp_path: Path, kind: str, **columns: Value) -> Diagnosis:
    """Of a trainer that waits from QUIET_S until the end."""
    return diagnosed(tmp_path, lambda run, trainer: run.halt(trainer, QUIET_S, LENGTH_S, kind, **columns))  # type: ignore[arg-type]


def test_it_says_since_when_what_for_and_where(tmp_path: Path) -> None:
    def full(run: ScriptedRun, trainer: Actor) -> None:
        shell = run.process(50, "sh")
        run.halt(trainer, QUIET_S, LENGTH_S, "pipe-write", owners=[(shell, "S")])
        run.sample(trainer, QUIET_S + 3, LINE, state="sleep")

    (incident,) = diagnosed(tmp_path, full).incidents
    assert incident.cause == "host-hang"
    assert incident.severity is Severity.CRITICAL
    assert incident.summary == (
        "python [100] has made no step for 5.89 s: thread 100 waits for room in a pipe that sh [50] should read "
        "(pipe-write, S) at fetch() at /job/train.py:40"
    )
    assert [one.pid for one in incident.culprits] == [50]
    assert incident.evidence["stack"] == "/job/train.py:40 in fetch < /job/train.py:90 in main"


@pytest.mark.parametrize(
    ("level", "seconds", "is_told"),
    [(HaltLevel.NEVER, 3, False), (HaltLevel.NEVER, 4, True), (HaltLevel.NAMED, 5, False), (HaltLevel.NAMED, 6, True)],
)
def test_what_is_certain_is_told_sooner(tmp_path: Path, level: HaltLevel, seconds: int, is_told: bool) -> None:
    diagnosis = diagnosed(
        tmp_path, lambda run, one: run.halt(one, QUIET_S, QUIET_S + seconds, "socket-read", level=level)
    )
    assert (causes(diagnosis) == ["host-hang"]) is is_told


def test_a_pause_no_longer_than_those_before_is_none(tmp_path: Path) -> None:
    """As an evaluation that comes again and again; but what is certain is told."""

    def again(level: HaltLevel) -> list[str]:
        def evaluates(run: ScriptedRun, trainer: Actor) -> None:
            run.train(trainer, QUIET_S, QUIET_S + 0.001, Step(busy_ms=6, idle_ms=3000))  # ends at 9.0 s
            run.halt(trainer, 3.0 + QUIET_S, LENGTH_S, "futex", level=level)

        folder = tmp_path / level.name
        folder.mkdir()
        return [cause for cause in causes(diagnosed(folder, evaluates)) if cause == "host-hang"]

    assert again(HaltLevel.NAMED) == []


def test_a_worker_that_died_is_said_with_how(tmp_path: Path) -> None:
    def died(run: ScriptedRun, trainer: Actor) -> None:
        died = {"exit_ns": run.at(QUIET_S), "exit_code": int(signal.SIGBUS)}
        run.process(101, "pt_data_worker", parent=trainer, **died)
        memory = {"shm_bytes": 1 << 20, "shm_free_bytes": 0}
        run.halt(trainer, QUIET_S, LENGTH_S, "pipe-read", level=HaltLevel.NAMED, **memory)

    (incident,) = diagnosed(tmp_path, died).incidents
    assert "pt_data_worker [101] was ended by signal 7: /dev/shm of 1.00 MiB is full" in incident.summary
    assert [one.pid for one in incident.culprits] == [101]
    assert "shm-size" in incident.fixes[0].command


def test_a_worker_that_ended_well_before_is_not_the_reason(tmp_path: Path) -> None:
    def ended(run: ScriptedRun, trainer: Actor) -> None:
        run.process(101, "pt_data_worker", parent=trainer, exit_ns=run.at(QUIET_S - 4), exit_code=0)
        run.halt(trainer, QUIET_S, LENGTH_S, "pipe-read")

    (incident,) = diagnosed(tmp_path, ended).incidents
    assert "pt_data_worker" not in incident.summary


def test_a_lock_held_since_a_fork_says_whose(tmp_path: Path) -> None:
    def forked(run: ScriptedRun, trainer: Actor) -> None:
        child = run.process(101, "python", parent=trainer, start_s=QUIET_S)
        run.halt(trainer, QUIET_S, LENGTH_S, "pipe-read", owners=[(child, "S")])
        run.halt(child, QUIET_S, LENGTH_S, "futex", above=trainer)
        run.sample(child, QUIET_S + 3, LINE, state="sleep")

    (incident,) = diagnosed(tmp_path, forked).incidents
    assert "that python [101] should fill" in incident.summary
    assert "no thread is left to release: it was held when python [100] forked this process" in incident.summary
    assert "spawn" in incident.fixes[0].command


def test_who_answers_others_waits_for_the_next_question(tmp_path: Path) -> None:
    def serves(run: ScriptedRun, trainer: Actor) -> None:
        for second in range(1, 6):
            run.off_cpu(trainer, second, second + 0.1, "sleep", waker="network")
        run.halt(trainer, QUIET_S, LENGTH_S, "futex", level=HaltLevel.NAMED)

    assert causes(diagnosed(tmp_path, serves)) == []


def test_who_has_always_slept_there_polls_for_work(tmp_path: Path) -> None:
    def polls(run: ScriptedRun, trainer: Actor) -> None:
        run.off_cpu(trainer, 5.0, 5.01, "sleep", waker="timer", stack=LINE)
        run.halt(trainer, QUIET_S, LENGTH_S, "timer", level=HaltLevel.NAMED)
        run.sample(trainer, QUIET_S + 3, LINE, state="sleep")

    assert causes(diagnosed(tmp_path, polls)) == []


def test_who_never_did_looks_for_what_does_not_come(tmp_path: Path) -> None:
    def polls(run: ScriptedRun, trainer: Actor) -> None:
        run.halt(trainer, QUIET_S, LENGTH_S, "timer", level=HaltLevel.NAMED)
        run.sample(trainer, QUIET_S + 3, LINE, state="sleep")

    (incident,) = diagnosed(tmp_path, polls).incidents
    assert "sleeping in between" in incident.summary
    assert incident.line is not None
    assert incident.line.line == 40


def test_a_stopped_process_is_no_hang(tmp_path: Path) -> None:
    assert causes(told(tmp_path, "", level=int(HaltLevel.STOPPED))) == []


def test_a_process_without_steps_before_is_none(tmp_path: Path) -> None:
    def starts(run: ScriptedRun, _trainer: Actor) -> None:
        other = run.process(200, "python")
        run.train(other, QUIET_S - 0.05, QUIET_S, Step())
        run.halt(other, QUIET_S, LENGTH_S, "futex")

    assert "host-hang" not in causes(diagnosed(tmp_path, starts))


def test_what_it_lost_is_its_own_once_it_goes_on(tmp_path: Path) -> None:
    def waited(run: ScriptedRun, trainer: Actor) -> None:
        holder = run.process(50, "backup")
        run.halt(trainer, QUIET_S, QUIET_S + 4, "file-lock", object="/data/x.lock", owners=[(holder, "S")])
        run.train(trainer, QUIET_S, QUIET_S + 0.001, Step(idle_ms=4500, idle={"sleep": 4500}))
        run.train(trainer, QUIET_S + 4.51, LENGTH_S, Step())

    (incident,) = diagnosed(tmp_path, waited).incidents
    assert incident.cause == "host-hang"
    assert incident.severity is not Severity.CRITICAL
    assert "waits for the lock of /data/x.lock that backup [50] holds" in incident.summary
    assert incident.lost_ns == pytest.approx(4.5e9, rel=0.05)


def test_a_hostile_object_is_one_word_of_a_command(tmp_path: Path) -> None:
    def locked(run: ScriptedRun, trainer: Actor) -> None:
        run.halt(trainer, QUIET_S, LENGTH_S, "file-lock", object="/tmp/$(reboot)")

    (incident,) = diagnosed(tmp_path, locked).incidents
    assert incident.fixes[0].command == "sudo lsof '/tmp/$(reboot)'"


def test_without_a_look_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"halts": "switched off"})
    assert "host-hang" in {one.cause for one in diagnosis.not_evaluated}
