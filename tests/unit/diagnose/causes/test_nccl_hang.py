"""nccl-hang: a rank does not come; all are there; the wait is short; nobody else is in the communicator."""

from __future__ import annotations

from pathlib import Path

from ingero.demo.scene import BEGIN_NS, Actor, ScriptedRun, Step
from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import Severity
from ingero.store.reader import open_reader
from ingero.store.records import Window
from ingero.units import SECOND_NS
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes
from tests.unit.diagnose.causes.ranks import diagnosed_ranks


def hanging(run: ScriptedRun, first: Actor, second: Actor, until_s: float = LENGTH_S - 1) -> None:
    """Both train; then rank 0 waits for its device, and rank 1 is in no call."""
    for actor in (first, second):
        run.train(actor, 0, QUIET_S, Step())
        run.collective(actor, "ncclAllReduce", QUIET_S - 0.01, 900, 1 << 20)
    run.open_call(first, "cudaStreamSynchronize", QUIET_S, until_s)


def test_the_missing_rank_is_named(tmp_path: Path) -> None:
    diagnosis = diagnosed_ranks(tmp_path, hanging)
    assert causes(diagnosis) == ["nccl-hang"]
    incident = diagnosis.incidents[0]
    assert incident.severity is Severity.CRITICAL
    assert incident.root == "rank 1"
    assert [one.pid for one in incident.culprits] == [101]
    assert "rank 0 waited inside cudaStreamSynchronize after ncclAllReduce for 5.00 s" in incident.summary
    assert "rank 1 never arrived" in incident.summary


def test_a_missing_rank_that_was_killed_is_said_to_be(tmp_path: Path) -> None:
    ended = {"exit_ns": BEGIN_NS + 7 * SECOND_NS, "exit_code": 9}
    diagnosis = diagnosed_ranks(tmp_path, hanging, second=ended)
    assert "rank 1 never arrived: it was ended by signal 9" in diagnosis.incidents[0].summary


def test_when_all_ranks_are_inside_nobody_is_blamed(tmp_path: Path) -> None:
    def both(run: ScriptedRun, first: Actor, second: Actor) -> None:
        hanging(run, first, second)
        run.open_call(second, "cudaStreamSynchronize", QUIET_S + 0.5, LENGTH_S - 1)

    diagnosis = diagnosed_ranks(tmp_path, both)
    assert causes(diagnosis) == ["nccl-hang"]
    assert diagnosis.incidents[0].culprits == ()
    assert "all ranks are inside" in diagnosis.incidents[0].summary


def test_a_wait_of_two_seconds_is_none(tmp_path: Path) -> None:
    diagnosis = diagnosed_ranks(tmp_path, lambda run, first, second: hanging(run, first, second, until_s=QUIET_S + 2))
    assert causes(diagnosis) == []


def test_steps_that_always_take_seconds_are_none(tmp_path: Path) -> None:
    def large(run: ScriptedRun, first: Actor, second: Actor) -> None:
        for actor in (first, second):
            for _, begin_s, end_s in run.train(actor, 0, LENGTH_S, Step(busy_ms=5000, launch_ms=300)):
                run.open_call(actor, "cudaStreamSynchronize", begin_s + 0.3, end_s)

    assert causes(diagnosed_ranks(tmp_path, large)) == []


def test_a_process_without_peers_hangs_by_itself(tmp_path: Path) -> None:
    assert causes(diagnosed_ranks(tmp_path, hanging, comm_id_hash=(77, 78))) == ["hung-call"]


def test_without_open_calls_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed_ranks(tmp_path, hanging, not_traced={"in_flight": "no task iterator"})
    assert "nccl-hang" in {one.cause for one in diagnosis.not_evaluated}


def test_a_rank_that_has_waited_long_before_is_inside_all_the_same(tmp_path: Path) -> None:
    def both(run: ScriptedRun, first: Actor, second: Actor) -> None:
        """Rank 1 waited 2.5 s in its first step, in which rank 0 was the slow one."""
        run.train(first, 0, QUIET_S, Step())
        run.train(second, 0, 0.001, Step(busy_ms=2500, launches=2, size_bytes=1 << 30))
        run.train(second, 2.6, QUIET_S, Step())
        for actor in (first, second):
            run.open_call(actor, "cudaStreamSynchronize", QUIET_S, LENGTH_S - 1)

    diagnosis = diagnosed_ranks(tmp_path, both)
    assert causes(diagnosis) == ["nccl-hang"]
    assert diagnosis.incidents[0].culprits == ()


def test_a_rank_that_came_a_little_later_is_inside(tmp_path: Path) -> None:
    def one_after_the_other(run: ScriptedRun, first: Actor, second: Actor) -> None:
        hanging(run, first, second, until_s=QUIET_S + 3)
        run.open_call(second, "cudaStreamSynchronize", QUIET_S + 0.4, QUIET_S + 3)

    diagnosis = diagnosed_ranks(tmp_path, one_after_the_other)
    assert causes(diagnosis) == ["nccl-hang"]
    assert diagnosis.incidents[0].culprits == ()


def test_a_rank_that_gave_up_before_the_others_makes_no_second_hang(tmp_path: Path) -> None:
    def ended_apart(run: ScriptedRun, first: Actor, second: Actor) -> None:
        hanging(run, first, second, until_s=LENGTH_S)
        run.open_call(second, "cudaStreamSynchronize", QUIET_S + 0.5, LENGTH_S - 3)

    diagnosis = diagnosed_ranks(tmp_path, ended_apart)
    assert "rank 0" not in {one.root for one in diagnosis.incidents if one.cause == "nccl-hang"}


def test_a_short_wait_beside_a_stopped_rank_is_none(tmp_path: Path) -> None:
    def stopped(run: ScriptedRun, first: Actor, second: Actor) -> None:
        """Rank 1 is stopped inside its sync for five seconds; rank 0 is seen in one for less than two."""
        hanging(run, first, second, until_s=QUIET_S)
        run.open_call(second, "cudaStreamSynchronize", QUIET_S, LENGTH_S - 1)
        run.open_call(first, "cudaStreamSynchronize", LENGTH_S - 2.8, LENGTH_S - 1)
        for at_s in range(int(QUIET_S), int(LENGTH_S)):
            run.second(second, at_s, stopped=1000)

    assert "nccl-hang" not in causes(diagnosed_ranks(tmp_path, stopped))


def test_a_hang_after_a_shorter_one_is_told_by_its_ranks_too(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "twice.db", seconds=26) as run:
        launcher = run.process(50, "torchrun")
        ranks = [run.process(100 + rank, "python", parent=launcher, rank=rank, world_size=2) for rank in (0, 1)]
        for rank, actor in enumerate(ranks):
            run.communicator(actor, rank=rank, ranks=2)
            run.train(actor, 0, 2, Step())
        run.train(ranks[0], 2.001, 2.002, Step(busy_ms=4000))
        for actor in ranks:
            run.train(actor, 6.1, 9, Step())
        run.open_call(ranks[0], "cudaStreamSynchronize", 2.01, 6)
        run.open_call(ranks[0], "cudaStreamSynchronize", 9.01, 25)
    with open_reader(tmp_path / "twice.db") as reader:
        found = diagnose(reader, Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 26 * SECOND_NS))
    assert set(causes(found)) == {"nccl-hang"}
