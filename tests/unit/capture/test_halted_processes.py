"""A wait is followed to whoever could end it, and what is not proven is no halt."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.capture.stacks.halted_processes import HaltedWait, WaitFollower
from ingero.discover import waiting
from ingero.store.records import HaltLevel
from tests.unit.fake_proc import FIRST_PID, FUTEX_PRIVATE, FakeProc, call

TRAINER, WORKER, OTHER = FIRST_PID, FIRST_PID + 1, FIRST_PID + 2
READS, WRITES, ON_LOCK, SLEEPS, ANY = call(0, 5), call(1, 5), call(202, 64, FUTEX_PRIVATE), call(230), call(232, 4)
READ_END, WRITE_END = ("pipe:[77]", "flags:\t0100000\n"), ("pipe:[77]", "flags:\t0100001\n")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    monkeypatch.setattr(waiting.platform, "machine", lambda: "x86_64")
    return FakeProc(tmp_path / "proc")


def seen(proc: FakeProc, *, tids: tuple[int, ...] = (TRAINER,), looks: int = 2) -> HaltedWait | None:
    """What the last of some looks at the trainer found."""
    follower = WaitFollower(proc.folder)
    found = None
    for _ in range(looks):
        found = follower.follow(TRAINER, tids)
        follower.end_pass()
    return found


def test_one_look_proves_nothing(proc: FakeProc) -> None:
    proc.process(TRAINER, READS, files={5: READ_END})
    assert seen(proc, looks=1) is None


def test_a_pipe_that_nobody_else_has_open_is_never_filled(proc: FakeProc) -> None:
    proc.process(TRAINER, READS, files={5: READ_END})
    halt = seen(proc)
    assert halt is not None
    assert (halt.level, halt.wait.kind, halt.owners) == (HaltLevel.NEVER, waiting.PIPE_READ, ())


@pytest.mark.parametrize("state", ["T", "t", "Z"])
def test_nor_by_one_that_is_stopped_or_has_ended(proc: FakeProc, state: str) -> None:
    proc.process(TRAINER, READS, files={5: READ_END}, children=[WORKER])
    proc.process(WORKER, parent=TRAINER, state=state, files={6: WRITE_END})
    halt = seen(proc)
    assert halt is not None
    assert halt.level is HaltLevel.NEVER
    assert [(one.pid, one.state) for one in halt.owners] == [(WORKER, state)]


@pytest.mark.parametrize(("syscall", "state"), [("running", "R"), (SLEEPS, "S"), (call(74, 1), "D")])
def test_a_worker_that_is_at_work_will_fill_it(proc: FakeProc, syscall: str, state: str) -> None:
    proc.process(TRAINER, READS, files={5: READ_END})
    proc.process(WORKER, syscall, state=state, files={6: WRITE_END})
    assert seen(proc) is None


def test_a_worker_that_waits_for_a_lock_of_its_own_memory_alone_never_will(proc: FakeProc) -> None:
    """As after a fork while another thread of its parent held it."""
    proc.process(TRAINER, READS, files={5: READ_END})
    proc.process(WORKER, ON_LOCK, files={6: WRITE_END})
    halt = seen(proc)
    assert halt is not None
    assert halt.level is HaltLevel.NEVER
    assert [(one.pid, one.wait.kind, one.depth) for one in halt.chain()] == [
        (TRAINER, waiting.PIPE_READ, 0),
        (WORKER, waiting.FUTEX, 1),
    ]


def test_two_that_wait_for_each_other_wait_for_ever(proc: FakeProc) -> None:
    proc.process(TRAINER, READS, files={5: READ_END, 8: ("pipe:[78]", "flags:\t01\n")})
    proc.process(WORKER, call(0, 7), files={6: WRITE_END, 7: ("pipe:[78]", "flags:\t00\n")})
    halt = seen(proc)
    assert halt is not None
    assert halt.level is HaltLevel.NEVER


def test_one_that_waits_for_anybody_may_be_asked(proc: FakeProc) -> None:
    proc.process(TRAINER, READS, files={5: READ_END})
    proc.process(WORKER, ANY, files={6: WRITE_END})
    halt = seen(proc)
    assert halt is not None
    assert halt.level is HaltLevel.NAMED


def test_a_full_pipe_names_who_should_read_it(proc: FakeProc) -> None:
    proc.process(TRAINER, WRITES, files={5: WRITE_END})
    proc.process(OTHER, SLEEPS, files={3: READ_END})
    halt = seen(proc)
    assert halt is not None
    assert (halt.level, [one.pid for one in halt.owners]) == (HaltLevel.NEVER, [OTHER])


def test_a_lock_is_released_by_a_thread_that_is_at_work(proc: FakeProc) -> None:
    proc.process(TRAINER, ON_LOCK)
    proc.thread(TRAINER, OTHER, state="R")
    assert seen(proc) is None


def test_but_not_where_every_thread_waits_for_one(proc: FakeProc) -> None:
    proc.process(TRAINER, ON_LOCK)
    proc.thread(TRAINER, OTHER, ON_LOCK)
    halt = seen(proc)
    assert halt is not None
    assert (halt.level, halt.object) == (HaltLevel.NEVER, "all 2 threads of it wait for locks")


def test_where_another_thread_waits_for_anybody_it_may_be(proc: FakeProc) -> None:
    """As a server's, whose requests another thread takes."""
    proc.process(TRAINER, ON_LOCK)
    proc.thread(TRAINER, OTHER, ANY)
    halt = seen(proc)
    assert halt is not None
    assert halt.level is HaltLevel.NAMED


def test_the_holder_of_a_files_lock_is_named(proc: FakeProc) -> None:
    proc.process(TRAINER, call(73, 5, 2), files={5: ("/home/lock", "mnt_id:\t22\n")})
    proc.process(OTHER, SLEEPS)
    proc.locks(f"1: FLOCK ADVISORY WRITE {OTHER} 8:1:9 0 EOF\n1: -> FLOCK ADVISORY WRITE {TRAINER} 8:1:9 0 EOF\n")
    halt = seen(proc)
    assert halt is not None
    assert (halt.object, [one.pid for one in halt.owners]) == ("/home/lock", [OTHER])


def test_a_child_is_waited_for_as_long_as_it_works(proc: FakeProc) -> None:
    proc.process(TRAINER, call(61), children=[WORKER])
    proc.process(WORKER, state="R", parent=TRAINER)
    assert seen(proc) is None
    proc.process(WORKER, state="T", parent=TRAINER)
    halt = seen(proc)
    assert halt is not None
    assert halt.level is HaltLevel.NEVER


def test_a_sleep_by_itself_is_no_halt_and_many_in_a_row_are(proc: FakeProc) -> None:
    proc.process(TRAINER, SLEEPS)
    assert seen(proc, looks=8) is None
    follower, levels = WaitFollower(proc.folder), []
    for look in range(5):
        proc.thread(TRAINER, TRAINER, SLEEPS, switches=7 + 10 * look)
        levels.append(follower.follow(TRAINER, (TRAINER,)) is not None)
        follower.end_pass()
    assert levels == [False, False, False, True, True]


def test_sleeps_between_which_it_computes_are_none(proc: FakeProc) -> None:
    follower = WaitFollower(proc.folder)
    for look in range(8):
        proc.thread(TRAINER, TRAINER, SLEEPS, switches=7 + 10 * look, ran_ns=look * 10**9)
        assert follower.follow(TRAINER, (TRAINER,)) is None
        follower.end_pass()


def test_a_process_that_runs_is_none_whatever_its_other_threads_wait_for(proc: FakeProc) -> None:
    proc.process(TRAINER, state="R")
    proc.thread(TRAINER, OTHER, READS)
    assert seen(proc, tids=(TRAINER, OTHER)) is None


def test_one_that_a_debugger_holds_says_who(proc: FakeProc) -> None:
    proc.process(TRAINER, READS, state="t", tracer=OTHER)
    proc.process(OTHER, ANY)
    halt = seen(proc, looks=1)
    assert halt is not None
    assert (halt.level, [one.pid for one in halt.owners]) == (HaltLevel.STOPPED, [OTHER])


def test_a_process_that_is_gone_is_none(proc: FakeProc) -> None:
    assert seen(proc) is None


def test_what_a_loop_looks_for_is_asked_once(proc: FakeProc) -> None:
    proc.process(TRAINER, SLEEPS)
    (proc.folder / str(TRAINER) / "cwd").symlink_to("/job")
    asked: list[int] = []

    def path_of(tid: int) -> str:
        asked.append(tid)
        return "build/lock"

    follower, objects = WaitFollower(proc.folder, path_of), []
    for look in range(6):
        proc.thread(TRAINER, TRAINER, SLEEPS, switches=7 + 10 * look)
        halt = follower.follow(TRAINER, (TRAINER,))
        objects.append(halt.object if halt else None)
        follower.end_pass()
    assert objects == [None, None, None, *["/job/build/lock"] * 3]
    assert asked == [TRAINER]
