"""block-io: fires for waits that a disk ended, with the requests behind them; unrelated requests are no reason."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.events import HOST_MANY, HostFlag
from ingero.ops import IoOp
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed
from tests.unit.diagnose.causes.ranks import diagnosed_ranks

DISK = 8 << 20
WAIT_MS = 18.0
Waker = Literal["timer", "block"]


def loading(run: ScriptedRun, trainer: Actor, waker: Waker = "block", flags: int = 0) -> None:
    """A worker reads from a disk that four writers keep busy."""
    worker = run.process(101, "pt_data_worker", parent=trainer)
    name, writer = run.text(worker.name), run.text("writer")
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=20.5, idle={"sleep": 20})):
        run.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=worker)
        run.off_cpu(worker, begin + 0.001, begin + 0.019, "io" if waker == "block" else "sleep", waker=waker)
        if waker == "block":
            at_s = begin + 0.0135
            run.host_event(IoOp.READ, at_s, actor=worker, ms=5, arg0=1 << 20, arg2=DISK, queue_ns=12_000_000, comm=name)
        run.host_event(IoOp.WRITE, begin, ms=15, pid=900, tid=900, arg0=8 << 20, arg2=DISK, comm=writer, flags=flags)


def test_a_load_is_charged_to_the_disk_and_to_who_else_used_it(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, loading)
    assert causes(diagnosis) == ["block-io"]
    incident = diagnosis.incidents[0]
    assert incident.resource == "disk 8:0"
    assert incident.lost_ratio == pytest.approx(WAIT_MS / 26.55, rel=0.1)
    assert "pt_data_worker [101] was reading from disk 8:0" in incident.summary
    assert "of 17.0 ms, 12.0 ms of it in the queue" in incident.summary
    assert [(one.pid, one.name) for one in incident.culprits] == [(900, "writer")]


def test_another_rank_at_the_disk_is_named_and_not_to_be_reniced(tmp_path: Path) -> None:
    def sharding(run: ScriptedRun, first: Actor, other: Actor) -> None:
        for one in (first, other):
            run.train(one, 0, QUIET_S, Step())
        name, size = run.text("python"), {"arg0": 8 << 20, "arg2": DISK}
        for begin, _, _ in run.train(first, QUIET_S, LENGTH_S, Step(idle_ms=18.5, idle={"io": WAIT_MS})):
            run.off_cpu(first, begin, begin + 0.018, "io", waker="block")
            run.host_event(IoOp.READ, begin + 0.0125, actor=first, ms=5, queue_ns=12_000_000, comm=name, **size)
            run.host_event(IoOp.READ, begin, actor=other, ms=15, comm=name, **size)
        run.train(other, QUIET_S, LENGTH_S, Step())

    incident = next(one for one in diagnosed_ranks(tmp_path, sharding).incidents if one.cause == "block-io")
    assert [one.pid for one in incident.culprits] == [101]
    assert not [one for one in incident.fixes if "nice" in one.command]


def test_requests_that_stand_for_many_are_told_as_many(tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    few = diagnosed(tmp_path / "few", loading).incidents[0].evidence
    flags = int(HostFlag.ONE_OF_MANY)
    many = diagnosed(tmp_path, lambda run, trainer: loading(run, trainer, flags=flags)).incidents[0].evidence
    name = "other processes on the disk (bytes)"
    assert many[name] == HOST_MANY * int(few[name] or 0)


@pytest.mark.parametrize(("requests", "culprits"), [(1, [900]), (8, [900, 901])])
def test_one_request_that_stands_for_many_names_nobody(tmp_path: Path, requests: int, culprits: list[int]) -> None:
    def beside_a_journal(run: ScriptedRun, trainer: Actor) -> None:
        loading(run, trainer)
        name, flags = run.text("journald"), int(HostFlag.ONE_OF_MANY)
        for number in range(requests):
            run.host_event(
                IoOp.WRITE, QUIET_S + 1 + number / 10, ms=2, pid=901, tid=901, arg0=64 << 10, arg2=DISK,
                queue_ns=40_000_000, comm=name, flags=flags,
            )  # fmt: skip

    (incident,) = diagnosed(tmp_path, beside_a_journal).incidents
    assert sorted(one.pid for one in incident.culprits) == culprits


def test_a_checkpoint_is_told_by_its_direction(tmp_path: Path) -> None:
    def saving(run: ScriptedRun, trainer: Actor) -> None:
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=10.5, idle={"io": 10})):
            run.off_cpu(trainer, begin, begin + 0.010, "io", waker="block")
            run.host_event(IoOp.WRITE, begin + 0.001, actor=trainer, ms=8, arg0=64 << 20, arg2=DISK)

    diagnosis = diagnosed(tmp_path, saving)
    assert causes(diagnosis) == ["block-io"]
    incident = diagnosis.incidents[0]
    assert incident.evidence["direction"] == "write"
    assert incident.lost_ratio == pytest.approx(10 / 16.55, rel=0.05)
    assert "async_save" in incident.fixes[0].command


def test_what_is_computed_in_the_function_that_waits_for_the_disk_belongs_to_it(tmp_path: Path) -> None:
    """Few of its sleeps were seen, but those that were looked at as they began tell the function, at another line."""

    def saving(run: ScriptedRun, trainer: Actor) -> None:
        step = Step(idle_ms=5.5, idle={"io": 1, "run": 4})
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, step):
            run.sample(trainer, begin + 0.002, (("/srv/job/train.py", 61, "save"),))
            run.off_cpu(trainer, begin, begin + 0.001, "io", waker="block", stack=(("/srv/job/train.py", 62, "save"),))
            run.host_event(IoOp.WRITE, begin, actor=trainer, ms=1, arg0=4 << 20, arg2=DISK)

    (incident,) = diagnosed(tmp_path, saving).incidents
    assert (incident.cause, str(incident.line)) == ("block-io", "save() at /srv/job/train.py:62")
    assert incident.lost_ratio == pytest.approx(5 / 11.55, rel=0.1)


@pytest.mark.parametrize(("last_ms", "cause"), [(95, "block-io"), (85, "host-bound")])
def test_a_wait_at_which_nobody_looked_is_where_its_thread_ran_just_before(
    tmp_path: Path, last_ms: int, cause: str
) -> None:
    """A checkpoint that is written now and then: 100 ms into the page cache, 25 ms until it lies on the disk."""

    def saving(run: ScriptedRun, trainer: Actor) -> None:
        stall = Step(idle_ms=126, idle={"io": 25, "run": 101})
        ((begin, _, end),) = run.train(trainer, QUIET_S, QUIET_S + 0.1, stall)
        for at_ms in range(last_ms, 0, -10):
            run.sample(trainer, begin + at_ms / 1e3, (("/srv/job/train.py", 61, "save"),))
        run.off_cpu(trainer, begin + 0.101, begin + 0.126, "io", waker="block")
        run.host_event(IoOp.WRITE, begin + 0.105, actor=trainer, ms=20, arg0=56 << 20, arg2=DISK)
        run.train(trainer, end, LENGTH_S, Step())

    assert causes(diagnosed(tmp_path, saving)) == [cause]


def reading(run: ScriptedRun, trainer: Actor, wait_ms: float) -> None:
    """As many bytes a step as ever, each a little later, with nobody else on the disk."""
    worker = run.process(101, "pt_data_worker", parent=trainer)
    quiet = [(0.0065 * number, 1.0) for number in range(int(QUIET_S / 0.0065))]
    step = Step(idle_ms=0.5 + wait_ms, idle={"sleep": wait_ms})
    slow = [(begin, 1.0 + wait_ms) for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, step)]
    for begin, _ in slow:
        run.off_cpu(trainer, begin, begin + wait_ms / 1e3, "sleep", waker=worker)
        run.off_cpu(worker, begin - 0.001, begin + (wait_ms - 0.01) / 1e3, "io", waker="block")
    for begin, ms in quiet + slow:
        run.host_event(IoOp.READ, begin - 0.001, actor=worker, ms=ms, arg0=1 << 20, arg2=DISK)


def test_a_disk_that_is_a_little_slower_by_itself_is_no_finding(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, trainer: reading(run, trainer, 0.3))) == []


def test_a_disk_that_is_much_slower_by_itself_is_told(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, trainer: reading(run, trainer, 0.6))) == ["block-io"]


def test_others_at_the_disk_do_not_make_a_sleeping_worker_wait_for_it(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: loading(run, trainer, "timer"))
    assert "block-io" not in causes(diagnosis)


def test_without_block_requests_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, loading, not_traced={"IO": "switched off (io)"})
    assert "block-io" not in causes(diagnosis)
    assert "block-io" in {one.cause for one in diagnosis.not_evaluated}
