"""nccl-hang, before there is a communicator: who waits in ncclCommInitRank, and who has not arrived."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ingero.demo.scene import Actor, ScriptedRun
from ingero.diagnose.findings import Diagnosis, Severity
from tests.unit.diagnose.causes.golden import LENGTH_S, causes, diagnosed_file

SINCE_S = 1.0


def met(tmp_path: Path, script: Callable[[ScriptedRun], None]) -> Diagnosis:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        script(run)
    return diagnosed_file(path)


def rank(run: ScriptedRun, number: int, of: int = 2, **columns: int) -> Actor:
    return run.process(100 + number, "python", rank=number, world_size=of, **columns)


def waits(run: ScriptedRun, one: Actor, until_s: float = LENGTH_S - 1) -> None:
    run.open_call(one, "ncclCommInitRank", SINCE_S, until_s)


def test_a_rank_that_nobody_has_seen_is_named(tmp_path: Path) -> None:
    (incident,) = met(tmp_path, lambda run: waits(run, rank(run, 0))).incidents
    assert incident.cause == "nccl-hang"
    assert incident.summary == (
        "rank 0 of 2 waited alone inside ncclCommInitRank for 10.0 s; rank 1 has not been seen on this host: not "
        "started, or elsewhere"
    )
    assert incident.severity is Severity.HIGH  # it may be on its way, on another host


def test_a_rank_that_is_there_and_has_not_come_is_the_culprit(tmp_path: Path) -> None:
    def late(run: ScriptedRun) -> None:
        waits(run, rank(run, 0))
        rank(run, 1)

    (incident,) = met(tmp_path, late).incidents
    assert "rank 1 has not arrived: python [101] runs" in incident.summary
    assert [one.pid for one in incident.culprits] == [101]
    assert incident.severity is Severity.CRITICAL


def test_a_rank_that_has_ended_is_said_with_how(tmp_path: Path) -> None:
    def died(run: ScriptedRun) -> None:
        waits(run, rank(run, 0))
        rank(run, 1, exit_ns=run.at(2), exit_code=9)

    (incident,) = met(tmp_path, died).incidents
    assert "rank 1 has not arrived: it was ended by signal 9" in incident.summary


def test_many_that_are_elsewhere_are_not_all_listed(tmp_path: Path) -> None:
    (incident,) = met(tmp_path, lambda run: waits(run, rank(run, 0, of=64))).incidents
    assert "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 55 more have not been seen" in incident.summary


def test_ranks_that_are_all_there_have_half_a_minute(tmp_path: Path) -> None:
    def both(run: ScriptedRun) -> None:
        for number in range(2):
            waits(run, rank(run, number))

    assert causes(met(tmp_path, both)) == []


def test_meeting_takes_seconds(tmp_path: Path) -> None:
    assert causes(met(tmp_path, lambda run: waits(run, rank(run, 0), SINCE_S + 7))) == []


def test_the_workers_of_a_rank_are_no_ranks(tmp_path: Path) -> None:
    def forked(run: ScriptedRun) -> None:
        first = rank(run, 0)
        waits(run, first)
        run.process(150, "pt_data_worker", parent=first, start_s=0.5, rank=0, world_size=2)

    (incident,) = met(tmp_path, forked).incidents
    assert "pt_data_worker" not in incident.summary
