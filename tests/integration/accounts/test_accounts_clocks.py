"""Each of the eight clocks, by a workload that runs only this one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ingero.discover.kernel import read_kernel
from ingero.units import SECOND_NS

from . import cgroups
from .conftest import Start
from .rig import STATES, SchedulerPrograms, Window, Workload, measure, window

pytestmark = pytest.mark.integration
WINDOW_S = 1.0


def _measured(
    scheduler: SchedulerPrograms, work: Workload, comm: str, body: Callable[[], None] | None = None
) -> Window:
    slot = scheduler.track(work.pid)
    measure(0.05)  # every thread has had its first event
    with window(scheduler, work.pid, slot) as result:
        (body or (lambda: measure(WINDOW_S)))()
    print("\n" + result[0].line(comm))
    return result[0].only(comm)


def _steal_ns() -> int:
    """What a hypervisor took of all CPUs since boot; a thread that had one goes on running, and is booked nothing."""
    all_cpus = Path("/proc/stat").read_text().splitlines()[0].split()
    return int(all_cpus[1 + 7]) * SECOND_NS // os.sysconf("SC_CLK_TCK")


def _only_clocks(seen: Window) -> set[str]:
    return {name for name in STATES if seen.state_ns(name)}


def test_a_thread_that_computes_runs_and_waits_for_a_cpu_and_nothing_else(
    scheduler: SchedulerPrograms, start: Start
) -> None:
    seen = _measured(scheduler, start("spin", 2), "spin")
    assert seen.state_ns("run") > 0
    assert _only_clocks(seen) <= {"run", "runq"}


def test_run_is_what_the_kernel_has_booked_but_for_the_switches(scheduler: SchedulerPrograms, start: Start) -> None:
    steal_ns = _steal_ns()
    seen = _measured(scheduler, start("spin", 2), "spin")
    # the kernel books a wake-up's work to the woken thread; run begins at the switch
    allowance_ns = 20_000 * int(seen.switches.sum()) + seen.exec_ns.sum() // 100 + (_steal_ns() - steal_ns)
    assert abs(seen.state_ns("run") - int(seen.exec_ns.sum())) <= allowance_ns


def test_a_thread_that_waits_behind_hogs_has_its_wait_on_the_run_queue(
    scheduler: SchedulerPrograms, start: Start, hog: Path
) -> None:
    for _ in range(4):
        start("spin", 1, program=hog)
    seen = _measured(scheduler, start("spin", 2), "spin")
    assert seen.state_ns("runq") > 0.3 * seen.elapsed_ns.sum()
    assert _only_clocks(seen) <= {"run", "runq"}


def test_a_thread_that_sleeps_all_the_time_has_only_slept(scheduler: SchedulerPrograms, start: Start) -> None:
    seen = _measured(scheduler, start("pause", 1), "pause")
    assert seen.state_ns("sleep") == seen.elapsed_ns.sum()


def test_short_sleeps_are_counted_in_full(scheduler: SchedulerPrograms, start: Start) -> None:
    seen = _measured(scheduler, start("sleep", 1), "sleep")
    sleeps = int(seen.switches.sum()) - int(seen.flaws.sum())
    assert seen.state_ns("sleep") >= 0.9 * 1_000_000 * (sleeps - 1) > 0
    assert not _only_clocks(seen) & {"io", "uninterruptible", "stopped", "throttled", "yielded"}


def test_direct_reads_of_a_disk_are_io(scheduler: SchedulerPrograms, start: Start, tmp_path: Path) -> None:
    seen = _measured(scheduler, start("disk", 1, tmp_path / "file"), "disk")
    off_cpu = seen.elapsed_ns.sum() - seen.state_ns("run") - seen.state_ns("runq")
    assert seen.state_ns("io") > 0.9 * off_cpu > 0
    assert seen.state_ns("sleep") < 0.01 * off_cpu


def test_waiting_for_the_kernel_without_a_disk_is_uninterruptible(scheduler: SchedulerPrograms, start: Start) -> None:
    seen = _measured(scheduler, start("vfork", 1), "vfork")
    assert seen.state_ns("uninterruptible") > 0.9 * (
        seen.elapsed_ns.sum() - seen.state_ns("run") - seen.state_ns("runq")
    )
    assert seen.state_ns("io") == 0


def test_waits_after_sched_yield_are_not_contention(scheduler: SchedulerPrograms, start: Start, hog: Path) -> None:
    for _ in range(2):
        start("spin", 1, program=hog)
    if "eevdf" not in read_kernel().features:
        pytest.skip("CFS (before 6.6) lets a thread that yields go on until the tick preempts it")
    seen = _measured(scheduler, start("yield", 2), "yield")
    assert seen.state_ns("yielded") > 0.2 * seen.elapsed_ns.sum()
    assert seen.state_ns("runq") < 0.1 * seen.waited_ns


@contextmanager
def _stopped_by_signal(work: Workload) -> Iterator[None]:
    work.signal(signal.SIGSTOP)
    yield
    work.signal(signal.SIGCONT)


@contextmanager
def _frozen_by_v1(work: Workload) -> Iterator[None]:
    with cgroups.group("freezer") as folder:
        cgroups.add(folder, work.pid)
        (folder / "freezer.state").write_text("FROZEN")
        yield
        (folder / "freezer.state").write_text("THAWED")


@contextmanager
def _frozen_by_v2(work: Workload) -> Iterator[None]:
    with cgroups.group("cgroup2") as folder:
        cgroups.add(folder, work.pid)
        (folder / "cgroup.freeze").write_text("1")
        yield
        (folder / "cgroup.freeze").write_text("0")


def _ways_to_stop() -> list[tuple[str, Callable[[Workload], Any]]]:
    ways: list[tuple[str, Callable[[Workload], Any]]] = [
        (mode, stop) for mode in ("spin", "sleep") for stop in (_stopped_by_signal, _frozen_by_v2)
    ]
    # the v1 freezer leaves a sleeper asleep, so no scheduler event tells of it
    return ways if cgroups.mount_of("freezer") is None else [*ways, ("spin", _frozen_by_v1)]


@pytest.mark.parametrize(("mode", "stop"), _ways_to_stop())
def test_the_time_a_thread_is_held_is_stopped(
    scheduler: SchedulerPrograms, start: Start, stop: Callable[[Workload], ExitStack], mode: str
) -> None:
    work, held = start(mode, 1), []
    slot = scheduler.track(work.pid)
    with window(scheduler, work.pid, slot) as result:
        measure(0.1)
        begin = time.monotonic()
        with stop(work):
            _wait_until_still(scheduler, work.pid, mode)
            still = time.monotonic()
            measure(0.3)
            held.append(time.monotonic() - still)
        _wait_until_still(scheduler, work.pid, mode, is_still=False)
        held.append(time.monotonic() - begin)
    seen = result[0].only(mode)
    print("\n" + seen.line(f"{stop.__name__} {mode}"))
    assert held[0] <= seen.state_ns("stopped") / 1e9 <= held[1]


def _wait_until_still(scheduler: SchedulerPrograms, pid: int, comm: str, *, is_still: bool = True) -> None:
    """Until the thread's clock `stopped` runs, or no longer does."""
    while True:
        first, second = scheduler.dump(pid), scheduler.dump(pid)
        grown = second["state_ns"].astype(int) - first["state_ns"].astype(int)
        if (grown[first["comm"] == comm.encode(), STATES.index("stopped")] > 0).all() == is_still:
            return


def test_a_quota_shows_as_throttled(scheduler: SchedulerPrograms, start: Start) -> None:
    work = start("spin", 1, prefix=("taskset", "-c", "0"))
    with cgroups.group("cpu") as folder:
        cgroups.set_quota(folder)
        cgroups.add(folder, work.pid)
        measure(0.5)
        kernel: list[int] = []

        def body() -> None:
            kernel.append(cgroups.throttled_ns(folder))
            measure(2)
            kernel.append(cgroups.throttled_ns(folder))

        seen = _measured(scheduler, work, "spin", body)
        work.__exit__(None, None, None)
    # the kernel adds a period's throttling when the period ends: one of them may be in one count only
    assert abs(seen.state_ns("throttled") - (kernel[1] - kernel[0])) <= 0.1e9
    assert seen.state_ns("throttled") > 0.3 * seen.elapsed_ns.sum()
