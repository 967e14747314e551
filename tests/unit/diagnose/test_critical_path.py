"""Paths back from a wake-up: whose doing each moment of a wait was."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.offcpu.critical_path import CriticalPaths, PathSegment
from ingero.events import INTERPRETER_LOCK, THREAD_STATES, WAKER_KINDS
from ingero.store.arrays.arrays import OFFCPU_DTYPE

MS = 1_000_000
MAIN, PINNING, SENDER, WORKER, LENDER = 10, 11, 20, 21, 22  # threads of a trainer, and of its data worker
PID_OF = {MAIN: 10, PINNING: 10, SENDER: 20, WORKER: 20, LENDER: 20}


def slept(tid: int, begin_ms: float, end_ms: float, waker: int = 0, *, kind: str = "thread", futex: int = 0) -> Any:
    """One sleep; its thread ran as soon as it was woken."""
    row = np.zeros(1, OFFCPU_DTYPE)[0]
    row["tid"], row["pid"], row["process"], row["comm"] = tid, PID_OF[tid], PID_OF[tid], tid
    row["state"], row["waker_kind"], row["waker_tid"] = THREAD_STATES.index("sleep"), WAKER_KINDS.index(kind), waker
    row["start_ns"], row["duration_ns"] = int(begin_ms * MS), int((end_ms - begin_ms) * MS)
    row["woken_ns"], row["futex"] = int(end_ms * MS), futex
    return row


def born(tid: int, at_ms: float, first_run_ms: float, maker: int) -> Any:
    """How a thread begins: as a sleep of no length that its maker ended, and then a wait for a CPU."""
    row = slept(tid, at_ms, at_ms, maker)
    row["duration_ns"] = int((first_run_ms - at_ms) * MS)
    return row


def waits(*rows: Any) -> CriticalPaths:
    return CriticalPaths(
        np.array([tuple(row) for row in rows], OFFCPU_DTYPE), {tid: (pid, pid) for tid, pid in PID_OF.items()}
    )


def doings(path: list[PathSegment]) -> list[tuple[int, str, float]]:
    """Thread, state and length in ms, latest first; what took no time is left out."""
    found = ((one.tid, one.state, one.duration_ns / MS) for one in path)
    return [one for one in found if one[2]]


def test_a_question_and_its_answer_do_not_end_the_path() -> None:
    """A pinning thread asks the worker's lender for a file descriptor before it hands the batch on."""
    path = waits(
        slept(MAIN, 0, 210, PINNING),
        slept(PINNING, -20, 200, SENDER),  # until the batch was there
        slept(PINNING, 201, 202, LENDER),  # for the descriptor
        slept(LENDER, -90, 201, PINNING),
        slept(SENDER, -30, 198, WORKER),
        slept(WORKER, -90, 180, kind="timer"),
    ).path(MAIN, 0, 210 * MS)
    assert doings(path) == [
        (PINNING, "run", 8),
        (LENDER, "run", 1),
        (PINNING, "run", 1),
        (SENDER, "run", 2),
        (WORKER, "run", 18),
        (WORKER, "sleep", 180),
    ]


def test_every_moment_of_a_wait_is_on_its_path_once() -> None:
    """Producers side by side: the one that delivered last is on it, also while the thread between them was busy."""
    path = waits(
        slept(MAIN, 0, 100, PINNING),
        slept(PINNING, 0, 30, LENDER),  # somebody else's item
        slept(PINNING, 40, 90, SENDER),  # the one that main waits for
        slept(LENDER, -10, 20, kind="timer"),
        slept(SENDER, -10, 85, kind="timer"),
    ).path(MAIN, 0, 100 * MS)
    assert doings(path) == [(PINNING, "run", 10), (SENDER, "run", 5), (SENDER, "sleep", 85)]


def test_before_its_birth_a_thread_did_nothing_and_its_maker_is_on_the_path() -> None:
    """The sender of a worker is made as its first item is sent, and the worker itself as the wait begins."""
    path = waits(
        slept(MAIN, 2, 260, SENDER),
        born(SENDER, 255, 256, WORKER),
        slept(WORKER, 15, 250, kind="timer"),
        born(WORKER, 10, 12, LENDER),
    ).path(MAIN, 0, 260 * MS)
    assert doings(path) == [
        (SENDER, "run", 4),
        (SENDER, "runq", 1),
        (WORKER, "run", 5),
        (WORKER, "sleep", 235),
        (WORKER, "run", 3),
        (WORKER, "runq", 2),
        (LENDER, "run", 8),
    ]


def test_a_wait_for_the_interpreter_lock_does_not_take_the_path_along() -> None:
    """Before it wanted the lock, a thread did its own work; what the holder did then is not waited for."""
    path = waits(
        slept(MAIN, 0, 100, PINNING),
        slept(PINNING, 60, 90, SENDER, futex=INTERPRETER_LOCK | 8),
        slept(SENDER, -50, -40, kind="timer"),
    ).path(MAIN, 0, 100 * MS)
    assert [one for one in doings(path) if one[0] == PINNING] == [(PINNING, "run", 10), (PINNING, "run", 60)]
    assert sum(ns for _, _, ns in doings(path)) == 100


def test_threads_that_wake_each_other_end_somewhere() -> None:
    """However often two threads hand over, the path goes through them once and its pieces make up the wait."""
    rows = [slept(MAIN, 0, 1000, PINNING)]
    for at in range(0, 1000, 10):
        rows += [slept(PINNING, at, at + 5, SENDER), slept(SENDER, at + 5, at + 10, PINNING)]
    path = waits(*rows).path(MAIN, 0, 1000 * MS)
    assert sum(ns for _, _, ns in doings(path)) <= 1000
    assert {tid for tid, _, _ in doings(path)} <= {PINNING, SENDER}
