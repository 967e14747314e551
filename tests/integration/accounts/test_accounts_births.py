"""Threads and processes that are born and end while they are watched."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.integration.emulation import IS_EMULATED

from .conftest import Start
from .rig import STATES, SchedulerPrograms, measure, names_of

pytestmark = pytest.mark.integration
CHILD_EXIT_CODE = 7


@pytest.fixture
def scheduler() -> Iterator[SchedulerPrograms]:
    """Fresh for each test: the records of one test's processes must not be another's."""
    with SchedulerPrograms() as attached:
        yield attached


def test_every_short_thread_leaves_its_account_to_its_process(scheduler: SchedulerPrograms, start: Start) -> None:
    work = start("short_threads")
    slot = scheduler.track(work.pid)
    work.go()
    measure(2)
    threads, cpu_ns = work.end()
    process = scheduler.process(slot)
    run_ns, switches = int(process["gone_state_ns"][STATES.index("run")]), int(process["gone_switches"])
    print(f"\n{threads / 2:.0f} short threads a second; run/CPU time={run_ns / cpu_ns:.4f}; {scheduler.drops()}")
    assert process["gone_threads"] == threads + 2  # main, maker
    # before a thread's account begins and after its last switch-out its time is its process's only
    share = 0.1 if IS_EMULATED else 0.02
    assert abs(run_ns - cpu_ns) <= share * cpu_ns + 20_000 * switches
    assert "thread_storage_failed" not in scheduler.drops()


def _lifecycle(scheduler: SchedulerPrograms, kind: str) -> list[dict[str, object]]:
    kinds = names_of("lifecycle_kind", "LIFECYCLE_")
    rows = scheduler.rings["lifecycle"].read("lifecycle_record")
    chosen = rows[[kinds[int(row["kind"])] == kind for row in rows]]
    return [{name: row[name] for name in rows.dtype.names or ()} for row in chosen]


def test_each_child_process_takes_a_slot_of_its_own(scheduler: SchedulerPrograms, start: Start) -> None:
    work = start("children")
    slot = scheduler.track(work.pid)
    work.go()
    measure(0.3)
    children, _ = work.end()
    forks = _lifecycle(scheduler, "fork")
    slots = {int(record["process_slot"]) for record in forks}  # type: ignore[call-overload]  # a numpy integer
    assert len(forks) == len(slots) == children > 0
    assert slot not in slots
    assert {record["pid"] for record in forks} == {work.pid}
    for record in forks:
        process = scheduler.process(int(record["process_slot"]))  # type: ignore[call-overload]  # as above
        assert process["pid"] == record["other_pid"]
        assert process["start_boottime_ns"] == record["start_boottime_ns"] != 0
        assert process["gone_threads"] == 1


def test_the_end_of_a_process_is_recorded_once_with_its_exit_code(scheduler: SchedulerPrograms, start: Start) -> None:
    work = start("children")
    scheduler.track(work.pid)
    work.go()
    measure(0.3)
    children, _ = work.end()
    exits = _lifecycle(scheduler, "exit")
    assert sorted(int(record["code"]) >> 8 for record in exits) == [0] + [CHILD_EXIT_CODE] * children  # type: ignore[call-overload]
    assert len({int(record["pid"]) for record in exits}) == children + 1  # type: ignore[call-overload]


def test_a_killed_process_with_many_threads_ends_once(scheduler: SchedulerPrograms, start: Start) -> None:
    work = start("pause", 50)
    slot = scheduler.track(work.pid)
    work.__exit__(None, None, None)
    assert [int(record["code"]) for record in _lifecycle(scheduler, "exit")] == [9]  # type: ignore[call-overload]
    assert scheduler.maps["targets"].lookup(struct.pack("<I", work.pid)) is None
    while scheduler.process(slot)["gone_threads"] < 51:
        measure(0.01)
    assert len(scheduler.dump(work.pid)) == 0


def test_a_child_that_becomes_another_program_is_recorded(scheduler: SchedulerPrograms, start: Start) -> None:
    work = start("children", 1, "/bin/true")
    scheduler.track(work.pid)
    work.go()
    measure(0.3)
    children, _ = work.end()
    assert [record["comm"] for record in _lifecycle(scheduler, "exec")] == [b"true"] * children


def test_children_without_a_free_slot_are_counted(start: Start) -> None:
    with SchedulerPrograms(slots=3) as scheduler:
        work = start("children")
        scheduler.track(work.pid)
        work.go()
        measure(0.3)
        children, _ = work.end()
        forks = _lifecycle(scheduler, "fork")
        without = [record for record in forks if record["process_slot"] == 0xFFFF]
        assert len(forks) == children > 3
        assert len(without) == children - 3 == scheduler.drops()["process_slots_full"]


def test_threads_of_other_processes_have_no_account(scheduler: SchedulerPrograms, start: Start) -> None:
    work, other = start("sleep", 1), start("sleep", 1)
    scheduler.track(work.pid)
    measure(0.1)
    rows = scheduler.dump()
    assert set(rows["pid"].tolist()) == {work.pid} != {other.pid}
