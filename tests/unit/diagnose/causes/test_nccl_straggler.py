"""nccl-straggler: the others wait on the GPU for the rank that lost its time on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes
from tests.unit.diagnose.causes.ranks import diagnosed_ranks

LATE_MS = 10.0


def straggling(run: ScriptedRun, first: Actor, second: Actor) -> None:
    """Rank 1 loses 10 ms a step to a quota; rank 0 waits for it inside its own X."""
    for actor in (first, second):
        run.train(actor, 0, QUIET_S, Step())
    run.train(first, QUIET_S, LENGTH_S, Step(busy_ms=6 + LATE_MS))
    run.train(second, QUIET_S, LENGTH_S, Step(idle_ms=0.5 + LATE_MS, idle={"throttled": LATE_MS}))


def test_the_rank_that_came_late_is_named_with_its_own_reason(tmp_path: Path) -> None:
    diagnosis = diagnosed_ranks(tmp_path, straggling)
    assert causes(diagnosis) == ["nccl-straggler"]
    incident = diagnosis.incidents[0]
    assert incident.root == "rank 1"
    assert incident.evidence["because"] == "cpu-throttled"
    assert 101 in {one.pid for one in incident.culprits}
    assert incident.lost_ratio == pytest.approx(LATE_MS / (6.55 + LATE_MS), rel=0.05)


def test_a_rank_that_was_late_in_a_part_of_a_longer_time_range_is_named_for_that_part(tmp_path: Path) -> None:
    late_s, late_ms = 2.0, 2.0

    def late_for_a_while(run: ScriptedRun, first: Actor, second: Actor) -> None:
        """Rank 0 waits on for a rank that is not traced."""
        for actor in (first, second):
            run.train(actor, 0, QUIET_S, Step())
        run.train(first, QUIET_S, LENGTH_S, Step(busy_ms=6 + late_ms))
        run.train(second, QUIET_S, QUIET_S + late_s, Step(idle_ms=0.5 + late_ms, idle={"throttled": late_ms}))
        run.train(second, QUIET_S + late_s, LENGTH_S, Step())

    found = {one.cause: one for one in diagnosed_ranks(tmp_path, late_for_a_while).incidents}
    assert found["nccl-straggler"].root == "rank 1"
    assert found["nccl-straggler"].lost_ns == pytest.approx(late_s * 1e9 * late_ms / (6.55 + late_ms), rel=0.1)


def test_both_devices_slower_are_no_straggler(tmp_path: Path) -> None:
    def slower(run: ScriptedRun, first: Actor, second: Actor) -> None:
        for actor in (first, second):
            run.train(actor, 0, QUIET_S, Step())
            run.train(actor, QUIET_S, LENGTH_S, Step(busy_ms=6 + LATE_MS))

    assert set(causes(diagnosed_ranks(tmp_path, slower))) == {"gpu-slower"}


def test_ranks_whose_gpus_became_slower_together_are_not_told_apart(tmp_path: Path) -> None:
    def slower(run: ScriptedRun, first: Actor, second: Actor) -> None:
        for actor in (first, second):
            run.train(actor, 0, QUIET_S, Step())
            run.train(actor, QUIET_S, LENGTH_S, Step(busy_ms=6 + LATE_MS))

    (incident,) = diagnosed_ranks(tmp_path, slower).incidents
    assert "the GPU of one of rank 0 and rank 1 (they wait for each other in collectives)" in incident.summary
    assert {one.pid for one in incident.affected} == {100, 101}


def test_a_rank_that_launches_more_than_the_others_keeps_them_waiting(tmp_path: Path) -> None:
    def uneven(run: ScriptedRun, first: Actor, second: Actor) -> None:
        for actor in (first, second):
            run.train(actor, 0, QUIET_S, Step())
        run.train(first, QUIET_S, LENGTH_S, Step(busy_ms=6 + LATE_MS))
        run.train(second, QUIET_S, LENGTH_S, Step(busy_ms=6 + LATE_MS, launches=120))

    diagnosis = diagnosed_ranks(tmp_path, uneven)
    assert causes(diagnosis) == ["nccl-straggler"]
    (incident,) = diagnosis.incidents
    assert (incident.root, [one.pid for one in incident.culprits]) == ("rank 1", [101])
    assert "it launched 1.5x as many kernels per step as in the baseline" in incident.summary
    assert incident.lost_ratio == pytest.approx(LATE_MS / (6.55 + LATE_MS), rel=0.05)


def test_a_rank_that_evaluates_alone_keeps_the_others_waiting(tmp_path: Path) -> None:
    def alone(run: ScriptedRun, first: Actor, second: Actor) -> None:
        """Rank 1 makes steps of another kind for 0.4 s of each 1.6 s, rank 0 waits as long in one sync."""
        for begin in (round(1.6 * turn, 1) for turn in range(7)):
            for actor in (first, second):
                run.train(actor, begin, begin + 1.2, Step())
            run.train(first, begin + 1.21, begin + 1.211, Step(busy_ms=380))
            run.train(second, begin + 1.21, begin + 1.23, Step(idle_ms=4.5, idle={"throttled": 4}))  # a little late
            run.train(second, begin + 1.23, begin + 1.59, Step(busy_ms=8, launches=20))
            for tenth in range(3, 6):
                run.sample(second, begin + 1 + tenth / 10, [("/job/train.py", 40, "evaluate")])

    diagnosis = diagnosed_ranks(tmp_path, alone)
    assert set(causes(diagnosis)) == {"nccl-straggler"}
    assert {one.root for one in diagnosis.incidents} == {"rank 1"}
    assert "it made steps of another kind, evaluate() at /job/train.py:40" in diagnosis.incidents[0].summary


def test_a_peer_whose_host_was_always_slow_is_no_straggler(tmp_path: Path) -> None:
    def slower_for_a_while(run: ScriptedRun, first: Actor, second: Actor) -> None:
        """Both have a third of their time without work at best; then both devices are slower, and fast again."""
        for actor in (first, second):
            for begin_s, busy_ms in ((0, 6), (4, 12), (8, 6)):
                run.train(actor, begin_s, begin_s + 4, Step(idle_ms=3, busy_ms=busy_ms))

    assert "nccl-straggler" not in causes(diagnosed_ranks(tmp_path, slower_for_a_while))


def test_ranks_of_different_jobs_do_not_wait_for_each_other(tmp_path: Path) -> None:
    diagnosis = diagnosed_ranks(tmp_path, straggling, comm_id_hash=(77, 78))
    assert sorted(causes(diagnosis)) == ["cpu-throttled", "gpu-slower"]


def test_without_communicators_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed_ranks(tmp_path, straggling, not_traced={"communicators": "--nccl=false"})
    assert "nccl-straggler" in {one.cause for one in diagnosis.not_evaluated}


def test_seconds_of_waiting_for_a_late_rank_are_no_call_that_hung(tmp_path: Path) -> None:
    def once(run: ScriptedRun, first: Actor, second: Actor) -> None:
        """Rank 1 is held up once, for 3.5 s; the wait of rank 0 is last seen open just before it has lasted 3 s."""
        for actor in (first, second):
            run.train(actor, 0, QUIET_S, Step())
        run.train(first, QUIET_S, QUIET_S + 0.001, Step(busy_ms=3506))
        run.train(second, QUIET_S, QUIET_S + 0.001, Step(idle_ms=3500.5, idle={"throttled": 3500}))
        run.open_call(first, "cudaStreamSynchronize", QUIET_S + 0.0015, QUIET_S + 3)
        for actor in (first, second):
            run.train(actor, QUIET_S + 3.6, LENGTH_S, Step())

    diagnosis = diagnosed_ranks(tmp_path, once)
    assert causes(diagnosis) == ["nccl-straggler"]
    assert diagnosis.incidents[0].evidence["because"] == "cpu-throttled"


def test_a_peer_that_was_held_up_for_less_does_not_own_a_call_that_hung(tmp_path: Path) -> None:
    def once(run: ScriptedRun, first: Actor, second: Actor) -> None:
        for actor in (first, second):
            run.train(actor, 0, QUIET_S, Step())
        run.train(first, QUIET_S, QUIET_S + 0.001, Step(busy_ms=3506))
        run.train(second, QUIET_S, QUIET_S + 0.001, Step(idle_ms=1000.5, idle={"throttled": 1000}))
        run.train(second, QUIET_S + 1.1, LENGTH_S, Step())
        run.train(first, QUIET_S + 3.6, LENGTH_S, Step())

    assert "hung-call" in causes(diagnosed_ranks(tmp_path, once))


def test_ranks_that_wait_for_one_with_lowered_clocks_have_no_slower_device(tmp_path: Path) -> None:
    def one_is_hot(run: ScriptedRun, first: Actor, second: Actor) -> None:
        for actor, uuid in ((first, "GPU-0"), (second, "GPU-1")):
            run.append(tables.PROCESS_GPUS, process=actor.number, ordinal=0, uuid=uuid)
            run.train(actor, 0, QUIET_S, Step())
            run.train(actor, QUIET_S, LENGTH_S, Step(busy_ms=12))
        for second_s in range(1, int(LENGTH_S) + 1):
            is_hot = second_s > QUIET_S
            run.gpu(second_s - 0.01, uuid="GPU-0")
            run.gpu(second_s - 0.01, uuid="GPU-1", mhz=990 if is_hot else 1980, reasons=0x20 if is_hot else 0)

    diagnosis = diagnosed_ranks(tmp_path, one_is_hot)
    assert causes(diagnosis) == ["nccl-straggler"]
    incident = diagnosis.incidents[0]
    assert (incident.root, incident.evidence["because"]) == ("rank 1", "gpu-throttled")
