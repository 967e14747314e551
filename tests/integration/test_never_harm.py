"""A traced process behaves as it does untraced, whatever it does with its stack, its system calls and its children."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingero.demo.workloads import native
from ingero.events import CallFlag
from tests.integration.targets import Recorded, record, rows, run, simulation
from tests.integration.test_counts import recorded_counts, true_counts

pytestmark = pytest.mark.integration


def assert_counts_are_true(recorded: Recorded) -> int:
    """Calls of each operation equal the simulator's; returns how many there were.

    Nested and outermost ones together: a call made inside one that is not traced is outermost for the tracer only.
    Outermost calls are counted when they return, nested ones when they are entered.
    """
    outer, nested, _ = recorded_counts(recorded.database)
    true_outer, true_nested, _ = true_counts(recorded.truth)
    for (_, name), calls in recorded.truth.calls.items():
        if true_nested[name]:
            true_nested[name] += calls.nested_in_flight
    assert outer + nested == true_outer + true_nested
    return (outer + nested).total()


def test_a_process_under_seccomp_lives_and_its_calls_are_recorded(tmp_path: Path) -> None:
    recorded = record(simulation(tmp_path), [native.build("sandboxed"), 3])
    calls = assert_counts_are_true(recorded)
    print(f"\n{calls} calls under seccomp, {recorded.tracer.messages[0]['mode']}")
    assert json.loads(recorded.output)["steps"] > 10


@pytest.mark.parametrize(
    "modes",
    [
        ("throw", "longjmp"),
        pytest.param(("throw",), marks=pytest.mark.further),
        pytest.param(("longjmp",), marks=pytest.mark.further),
    ],
)
def test_frames_left_by_exceptions_and_longjmp_behave_as_untraced(tmp_path: Path, modes: tuple[str, ...]) -> None:
    command = [native.build("unwinding"), 1500, *modes]
    (tmp_path / "untraced").mkdir()
    untraced = run(simulation(tmp_path / "untraced"), command)
    recorded = record(simulation(tmp_path), command)
    print(f"\n{assert_counts_are_true(recorded)} calls")
    assert recorded.output == untraced
    assert not recorded.drops.get("return_unmatched")


def test_children_and_programs_started_in_mid_call_run_as_untraced(tmp_path: Path) -> None:
    rounds = 40
    recorded = record(simulation(tmp_path), [native.build("forker"), rounds])
    print(f"\n{assert_counts_are_true(recorded)} calls, {rounds} children, one exec")
    assert json.loads(recorded.output) == {"children": rounds, "calls_after_exec": 20}
    names = dict(rows(recorded.database, "SELECT name, count(*) FROM raw_processes GROUP BY 1"))
    assert (names["true"], names["exe"]) == (rounds // 2, rounds // 4 + 1), "processes go by what they have become"


def test_a_call_that_an_exec_has_ended_is_recorded_as_unfinished(tmp_path: Path) -> None:
    recorded = record(simulation(tmp_path), [native.build("forker"), 4])
    calls = rows(recorded.database, "SELECT op, pid, tid FROM cuda_events WHERE flags & ?", CallFlag.UNFINISHED)
    assert [name for name, *_ in calls] == ["cudaStreamSynchronize"]
    ((_, pid, tid),) = calls
    assert pid != tid
