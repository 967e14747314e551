"""Targets keep their slots apart: who found none is named once, and a reused pid is another process."""

from __future__ import annotations

import os
import subprocess

import pytest

from ingero.capture.loop.rings import Backlog
from ingero.capture.processes.traced_processes import TICKS_UNTIL_RECYCLED, Targets
from ingero.discover.processes import ProcessId, read_process_id

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PID = 2**22 + 1  # beyond the largest there can be: /proc has no such process


class Kernel:
    """A kernel side with the slots it is given."""

    def __init__(self, *slots: int) -> None:
        self.slots = list(slots)
        self.released: list[tuple[int, int]] = []

    def enroll(self, pid: int, start_boottime_ns: int) -> int | None:
        assert pid > 0
        assert start_boottime_ns > 0
        return self.slots.pop() if self.slots else None

    def release(self, pid: int, slot: int) -> None:
        self.released.append((pid, slot))


def targets_of(kernel: Kernel) -> Targets:
    numbers: dict[tuple[int, int], int] = {}
    return Targets(kernel, 0, lambda *key: numbers.setdefault(key, len(numbers) + 1))  # type: ignore[arg-type]  # what Targets uses of it


def test_a_process_without_a_slot_is_refused_once_however_often_it_is_tried() -> None:
    targets = targets_of(Kernel())
    assert targets.add(os.getpid()) is None
    assert targets.add(os.getpid()) is None
    assert [one.pid for one in targets.refused] == [os.getpid()]
    assert (targets.newly_refused(), targets.newly_refused()) == (1, 0)
    assert len(targets) == 0


def test_what_the_kernel_has_turned_away_is_not_counted_again() -> None:
    targets = targets_of(Kernel())
    own = read_process_id(os.getpid())
    assert own is not None
    targets.turned_away(own.pid, own.start_ticks * TICK_NS, "name")
    assert targets.add(own.pid) is None
    assert targets.newly_refused() == 0
    assert list(targets.refused) == [own]


def test_of_very_many_that_found_no_slot_the_latest_are_kept() -> None:
    targets = targets_of(Kernel())
    own = read_process_id(os.getpid())
    assert own is not None
    targets.turned_away(own.pid, own.start_ticks * TICK_NS, "waits")
    for start in range(1_000, 4_000):  # of what had process id 1 before
        targets.turned_away(1, start * TICK_NS, "ended")
        if start % 100 == 0:
            assert list(targets.waiting()) == [own]
    assert 1000 < len(targets.refused) < 1100
    assert own in targets.refused
    assert 3_999 in {one.start_ticks for one in targets.refused}


def test_who_waits_for_a_slot_waits_until_it_has_one() -> None:
    kernel = Kernel()
    targets = targets_of(kernel)
    targets.add(os.getpid())
    assert [one.pid for one in targets.waiting()] == [os.getpid()]
    kernel.slots = [3]
    assert targets.add(os.getpid()) is not None
    assert list(targets.waiting()) == []


def test_a_process_that_has_ended_and_that_nobody_has_waited_for_takes_no_slot() -> None:
    kernel = Kernel(3)
    targets = targets_of(kernel)
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert targets.add(process.pid) is None
    assert kernel.slots == [3]
    assert targets.refused == {}


def test_a_later_process_with_the_same_pid_is_another_target() -> None:
    targets = targets_of(Kernel())
    first = targets.entered(PID, 1, 5 * TICK_NS, "first")
    second = targets.entered(PID, 2, 9 * TICK_NS, "second")
    assert first.number != second.number
    assert targets.exited(1, first.id, 10, 0) is first
    assert targets.of_pid(PID) is second
    assert second.exit_ns is None


@pytest.mark.parametrize("slot", [1, 2])
def test_the_end_of_another_process_ends_no_target(slot: int) -> None:
    targets = targets_of(Kernel())
    target = targets.entered(PID, 1, 5 * TICK_NS)
    assert targets.exited(slot, ProcessId(PID, 6), 10, 0) is None
    assert target.exit_ns is None


def test_told_of_the_same_process_again_it_is_the_same_target() -> None:
    targets = targets_of(Kernel())
    assert targets.entered(PID, 1, 5 * TICK_NS) is targets.entered(PID, 1, 5 * TICK_NS + 1)


def test_a_target_whose_end_was_not_told_is_let_go() -> None:
    kernel = Kernel()
    targets = targets_of(kernel)
    target = targets.entered(PID, 4, 5 * TICK_NS)
    assert targets.vanished({PID}) == []
    assert targets.vanished(set()) == [target]
    assert kernel.released == [(PID, 4)]
    recycled = [list(targets.recycle()) for _ in range(TICKS_UNTIL_RECYCLED)]
    assert recycled[-1] == [4]


def test_a_target_keeps_its_slot_until_its_last_thread_is_gone() -> None:
    targets = targets_of(Kernel())
    target = targets.entered(PID, 4, 5 * TICK_NS)
    assert targets.exited(4, target.id, 10, 0) is target
    leaving = [list(targets.recycle(held={4})) for _ in range(2 * TICKS_UNTIL_RECYCLED)]
    assert leaving == [[]] * len(leaving), "it gives back what it has, and its thread has an account all the while"
    gone = [list(targets.recycle(held={5})) for _ in range(TICKS_UNTIL_RECYCLED)]
    assert gone == [[]] * (TICKS_UNTIL_RECYCLED - 1) + [[4]]


def test_a_target_keeps_its_slot_until_records_from_its_life_are_handed_over() -> None:
    targets, asked, waiting = targets_of(Kernel()), [], [True]

    class Records(Backlog):
        @property
        def is_drained(self) -> bool:
            return not waiting[0]

    def backlog() -> Backlog:
        asked.append(1)
        return Records()

    target = targets.entered(PID, 4, 5 * TICK_NS)
    assert targets.exited(4, target.id, 10, 0) is target
    assert not any(list(targets.recycle(held={4}, backlog=backlog)) for _ in range(3))
    assert asked == [], "its last thread may still write one"
    assert not any(list(targets.recycle(backlog=backlog)) for _ in range(2 * TICKS_UNTIL_RECYCLED))
    waiting[0] = False
    assert list(targets.recycle(backlog=backlog)) == [4]
    assert asked == [1], "what came later is of others"


def test_the_name_of_a_process_that_has_ended_is_the_kernels() -> None:
    targets = targets_of(Kernel())
    assert targets.entered(PID, 1, 5 * TICK_NS, "burst").name == "burst"
    assert targets.entered(PID, 2, 6 * TICK_NS).name == "", "found by its sums, before its record"
    assert targets.entered(PID, 2, 6 * TICK_NS, "burst").name == "burst"
