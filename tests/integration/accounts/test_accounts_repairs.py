"""Events that never come: they are noticed, repaired and counted, and the sums hold."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from .rig import SchedulerPrograms, Window, Workload, measure, window

pytestmark = pytest.mark.integration
DROP_EVERY = 100


@pytest.fixture(scope="module")
def seen(program: Path, hog: Path) -> Window:
    """Threads of all kinds while each hundredth event is thrown away."""
    with ExitStack() as stack:
        scheduler = stack.enter_context(SchedulerPrograms(drop_every=DROP_EVERY))
        for _ in range(2):
            stack.enter_context(Workload(hog, "spin", 1))
        work = stack.enter_context(Workload(program, "migrate"))
        slot = scheduler.track(work.pid)
        with window(scheduler, work.pid, slot) as result:
            measure(2)
    print("\n" + result[0].line(f"1 of {DROP_EVERY} dropped"))
    return result[0]


def test_every_kind_of_missed_event_is_counted(seen: Window) -> None:
    assert {"switch_in_missed", "switch_out_missed", "switch_count_mismatch", "wakeup_missed"} <= set(seen.drops)


def test_the_missed_switches_are_as_many_as_the_kernel_counted_more(seen: Window) -> None:
    assert seen.drops["switch_count_mismatch"] <= int(seen.switches_ahead.sum()) + len(seen.tids)
    assert int(seen.switches_ahead.sum()) <= seen.drops["switch_count_mismatch"] + 2 * len(seen.tids)


def test_the_threads_touched_say_so(seen: Window) -> None:
    assert int(seen.flaws.sum()) > 0


def test_the_clocks_still_add_up(seen: Window) -> None:
    assert not np.any(seen.age_residual_ns)


def test_repairs_keep_the_run_time_right(seen: Window) -> None:
    run_ns, exec_ns = seen.state_ns("run"), int(seen.exec_ns.sum())
    assert abs(run_ns - exec_ns) <= 0.01 * exec_ns + 20_000 * int(seen.switches.sum())


def test_repairs_keep_the_waits_right(seen: Window) -> None:
    delay_ns = int(seen.delay_ns.sum())
    assert abs(seen.waited_ns - delay_ns) <= 0.02 * delay_ns + 10_000 * int(seen.switches.sum())


def test_a_waiter_whose_switch_was_lost_is_not_charged_for_ever(seen: Window) -> None:
    assert abs(seen.attributed_ns - seen.state_ns("runq")) <= 0.02 * seen.state_ns("runq")
