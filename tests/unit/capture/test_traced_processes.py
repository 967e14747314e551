"""Traced processes keep their slots apart: who found none is named once, and a reused pid is another process."""

from __future__ import annotations

import os
import subprocess

import pytest

from ingero.capture.loop.rings import Backlog
from ingero.capture.processes.traced_processes import TICKS_UNTIL_RECYCLED, TracedProcesses
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


def traced_processes_of(kernel: Kernel) -> TracedProcesses:
    numbers: dict[tuple[int, int], int] = {}
    return TracedProcesses(kernel, 0, lambda *key: numbers.setdefault(key, len(numbers) + 1))  # type: ignore[arg-type]  # what TracedProcesses uses of it


def test_a_process_without_a_slot_is_refused_once_however_often_it_is_tried() -> None:
    traced_processes = traced_processes_of(Kernel())
    assert traced_processes.add(os.getpid()) is None
    assert traced_processes.add(os.getpid()) is None
    assert [one.pid for one in traced_processes.refused] == [os.getpid()]
    assert (traced_processes.take_newly_refused(), traced_processes.take_newly_refused()) == (1, 0)
    assert len(traced_processes) == 0


def test_what_the_kernel_has_turned_away_is_not_counted_again() -> None:
    traced_processes = traced_processes_of(Kernel())
    own = read_process_id(os.getpid())
    assert own is not None
    traced_processes.on_refused(own.pid, own.start_ticks * TICK_NS, "name")
    assert traced_processes.add(own.pid) is None
    assert traced_processes.take_newly_refused() == 0
    assert list(traced_processes.refused) == [own]


def test_of_very_many_that_found_no_slot_the_latest_are_kept() -> None:
    traced_processes = traced_processes_of(Kernel())
    own = read_process_id(os.getpid())
    assert own is not None
    traced_processes.on_refused(own.pid, own.start_ticks * TICK_NS, "waits")
    for start in range(1_000, 4_000):  # of what had process id 1 before
        traced_processes.on_refused(1, start * TICK_NS, "ended")
        if start % 100 == 0:
            assert list(traced_processes.living_refused()) == [own]
    assert 1000 < len(traced_processes.refused) < 1100
    assert own in traced_processes.refused
    assert 3_999 in {one.start_ticks for one in traced_processes.refused}


def test_who_waits_for_a_slot_waits_until_it_has_one() -> None:
    kernel = Kernel()
    traced_processes = traced_processes_of(kernel)
    traced_processes.add(os.getpid())
    assert [one.pid for one in traced_processes.living_refused()] == [os.getpid()]
    kernel.slots = [3]
    assert traced_processes.add(os.getpid()) is not None
    assert list(traced_processes.living_refused()) == []


def test_a_process_that_has_ended_and_that_nobody_has_waited_for_takes_no_slot() -> None:
    kernel = Kernel(3)
    traced_processes = traced_processes_of(kernel)
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert traced_processes.add(process.pid) is None
    assert kernel.slots == [3]
    assert traced_processes.refused == {}


def test_a_later_process_with_the_same_pid_is_another_target() -> None:
    traced_processes = traced_processes_of(Kernel())
    first = traced_processes.on_admitted(PID, 1, 5 * TICK_NS, "first")
    second = traced_processes.on_admitted(PID, 2, 9 * TICK_NS, "second")
    assert first.number != second.number
    assert traced_processes.on_exit(1, first.id, 10, 0) is first
    assert traced_processes.of_pid(PID) is second
    assert second.exit_ns is None


@pytest.mark.parametrize("slot", [1, 2])
def test_the_end_of_another_process_ends_no_target(slot: int) -> None:
    traced_processes = traced_processes_of(Kernel())
    traced_process = traced_processes.on_admitted(PID, 1, 5 * TICK_NS)
    assert traced_processes.on_exit(slot, ProcessId(PID, 6), 10, 0) is None
    assert traced_process.exit_ns is None


def test_told_of_the_same_process_again_it_is_the_same_target() -> None:
    traced_processes = traced_processes_of(Kernel())
    assert traced_processes.on_admitted(PID, 1, 5 * TICK_NS) is traced_processes.on_admitted(PID, 1, 5 * TICK_NS + 1)


def test_a_target_whose_end_was_not_told_is_let_go() -> None:
    kernel = Kernel()
    traced_processes = traced_processes_of(kernel)
    traced_process = traced_processes.on_admitted(PID, 4, 5 * TICK_NS)
    assert traced_processes.end_vanished({PID}) == []
    assert traced_processes.end_vanished(set()) == [traced_process]
    assert kernel.released == [(PID, 4)]
    recycled = [list(traced_processes.recycle()) for _ in range(TICKS_UNTIL_RECYCLED)]
    assert recycled[-1] == [4]


def test_a_target_keeps_its_slot_until_its_last_thread_is_gone() -> None:
    traced_processes = traced_processes_of(Kernel())
    traced_process = traced_processes.on_admitted(PID, 4, 5 * TICK_NS)
    assert traced_processes.on_exit(4, traced_process.id, 10, 0) is traced_process
    leaving = [list(traced_processes.recycle(held={4})) for _ in range(2 * TICKS_UNTIL_RECYCLED)]
    assert leaving == [[]] * len(leaving), "it gives back what it has, and its thread has an account all the while"
    gone = [list(traced_processes.recycle(held={5})) for _ in range(TICKS_UNTIL_RECYCLED)]
    assert gone == [[]] * (TICKS_UNTIL_RECYCLED - 1) + [[4]]


def test_a_target_keeps_its_slot_until_records_from_its_life_are_handed_over() -> None:
    traced_processes, asked, waiting = traced_processes_of(Kernel()), [], [True]

    class Records(Backlog):
        @property
        def is_drained(self) -> bool:
            return not waiting[0]

    def backlog() -> Backlog:
        asked.append(1)
        return Records()

    traced_process = traced_processes.on_admitted(PID, 4, 5 * TICK_NS)
    assert traced_processes.on_exit(4, traced_process.id, 10, 0) is traced_process
    assert not any(list(traced_processes.recycle(held={4}, backlog=backlog)) for _ in range(3))
    assert asked == [], "its last thread may still write one"
    assert not any(list(traced_processes.recycle(backlog=backlog)) for _ in range(2 * TICKS_UNTIL_RECYCLED))
    waiting[0] = False
    assert list(traced_processes.recycle(backlog=backlog)) == [4]
    assert asked == [1], "what came later is of others"


def test_the_name_of_a_process_that_has_ended_is_the_kernels() -> None:
    traced_processes = traced_processes_of(Kernel())
    assert traced_processes.on_admitted(PID, 1, 5 * TICK_NS, "burst").name == "burst"
    assert traced_processes.on_admitted(PID, 2, 6 * TICK_NS).name == "", "found by its sums, before its record"
    assert traced_processes.on_admitted(PID, 2, 6 * TICK_NS, "burst").name == "burst"
