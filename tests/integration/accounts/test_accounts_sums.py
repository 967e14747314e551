"""Whatever threads do, their clocks add up, and so do their switches, waits and culprits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ingero.discover.kernel import throttles_tasks
from tests.integration.emulation import IS_EMULATED

from . import cgroups
from .rig import SchedulerPrograms, Window, Workload, measure, undisturbed, window

pytestmark = pytest.mark.integration
WINDOW_S = 1.2
# the kernel's run_delay begins at the enqueue, ours at the waking, and its clock is a few microseconds late at a switch
# (an emulated processor takes several times as long, and loses its own CPU in between)
SWITCH_ALLOWANCE_NS = 200_000 if IS_EMULATED else 10_000


@contextmanager
def _left_alone(work: Workload) -> Iterator[None]:
    del work
    yield


@contextmanager
def _stopped_again_and_again(work: Workload) -> Iterator[None]:
    over = threading.Event()

    def disturb() -> None:
        while not over.is_set():
            work.signal(signal.SIGSTOP)
            over.wait(0.05)
            work.signal(signal.SIGCONT)
            over.wait(0.07)

    thread = threading.Thread(target=disturb)
    thread.start()
    yield
    over.set()
    thread.join()


@contextmanager
def _under_quota(work: Workload) -> Iterator[None]:
    with cgroups.group("cpu") as folder:
        cgroups.set_quota(folder)
        cgroups.add(folder, work.pid)
        yield


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload, the hogs beside it, and what is done to it."""

    name: str
    arguments: tuple[str | int, ...]
    hogs: int = 0
    disturb: Callable[[Workload], object] = _left_alone


SCENARIOS = (
    Scenario("hogs", ("spin", 2), hogs=4),
    Scenario("pipe and hogs", ("pipe", 1), hogs=4),
    Scenario("yields", ("yield", 3)),
    Scenario("yields and hogs", ("yield", 2), hogs=4),
    Scenario("signal storm", ("storm",)),
    Scenario("stops", ("spin", 2), disturb=_stopped_again_and_again),
    Scenario("quota", ("spin", 2), disturb=_under_quota),
    Scenario("migrations", ("migrate",)),
    Scenario("2,000 threads", ("many", 1000)),
    Scenario("waits older than the accounts", ("spin", 300)),
)


@pytest.fixture(scope="module", params=SCENARIOS, ids=lambda scenario: scenario.name)
def seen(request: pytest.FixtureRequest, scheduler: SchedulerPrograms, program: Path, hog: Path) -> Window:
    """One measured scenario, for all tests of this file."""
    scenario: Scenario = request.param
    with ExitStack() as stack:
        stack.enter_context(undisturbed())  # behind 2,000 threads it would take an emulated processor minutes to begin
        for _ in range(scenario.hogs):
            stack.enter_context(Workload(hog, "spin", 1))
        work = stack.enter_context(Workload(program, *scenario.arguments))
        with undisturbed():  # behind 2,000 busy threads this takes seconds
            slot = scheduler.track(work.pid)
        stack.enter_context(scenario.disturb(work))  # type: ignore[arg-type]  # a context manager
        measure(0.3)
        with window(scheduler, work.pid, slot) as result:
            measure(WINDOW_S)
        work.__exit__(None, None, None)
    print("\n" + result[0].line(scenario.name))
    return result[0]


def test_the_clocks_of_every_thread_add_up_to_its_age(seen: Window) -> None:
    assert (np.abs(seen.states_ns.sum(axis=1) - seen.elapsed_ns) <= 1e-6 * seen.elapsed_ns).all()
    assert (np.abs(seen.age_residual_ns) <= 1e-6 * seen.elapsed_ns).all()


def test_every_switch_is_counted(seen: Window) -> None:
    # a thread that is just leaving has been counted by the kernel, but its event is still to come
    assert set(seen.switches_ahead.tolist()) <= {0, 1}
    assert "switch_count_mismatch" not in seen.drops


def test_culprits_add_up_to_the_time_on_the_run_queue(seen: Window) -> None:
    if seen.state_ns("throttled") and not throttles_tasks():
        pytest.skip("before 6.18 a throttled group stays among the waiters: its culprits are not reported")
    # while they were read, as many threads waited on this CPU as did on average: what they waited is charged later, and
    # a wait that ends meanwhile is charged with the part of it that lies before
    unread_ns = seen.reading_ns * (1 + seen.state_ns("runq") / seen.elapsed_ns.max())
    missing_ns = seen.state_ns("runq") - seen.attributed_ns - seen.unattributed_ns
    assert abs(missing_ns) <= 0.01 * seen.state_ns("runq") + 2e6 + 2 * unread_ns


def test_waits_agree_with_the_kernels_run_delay(seen: Window) -> None:
    right = seen.with_right_delay()
    assert len(right.tids) >= len(seen.tids) / 2
    delay_ns = int(right.delay_ns.sum())
    allowance_ns = 0.01 * delay_ns + SWITCH_ALLOWANCE_NS * int(right.switches.sum()) + seen.reading_ns
    # a waking that preempts leaves the kernel's clock at the enqueue (it skips the update at the switch that follows):
    # it counts the way of the interrupt to the other CPU as run time, a fifth of all waits of a pipe beside hogs here
    early_ns = max(0, int(right.exec_ns.sum()) - right.state_ns("run"))
    assert -allowance_ns <= right.waited_ns - delay_ns <= early_ns + allowance_ns
