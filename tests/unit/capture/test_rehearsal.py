"""The overhead limiter acts as on a slower machine where two variables say so, and refuses what has no meaning."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from ingero.capture.budget.levels import Level
from ingero.capture.budget.rehearsal import NO_REHEARSAL, RehearsalError, rehearsal_of
from ingero.capture.budget.trap_cost import TrapCosts

MEASURED = TrapCosts(full_ns=1000.0, nested_ns=600.0, counted_ns=500.0, suspended_ns=400.0)


@pytest.mark.parametrize("environment", [{}, {"INGERO_TEST_TRAP_COST_NS": "", "INGERO_TEST_GIVE_UP": ""}])
def test_without_a_variable_everything_is_as_measured(environment: dict[str, str]) -> None:
    assert rehearsal_of(environment) == NO_REHEARSAL
    assert NO_REHEARSAL.costs(MEASURED) == MEASURED


def test_all_costs_grow_as_that_of_a_probed_call() -> None:
    costs = rehearsal_of({"INGERO_TEST_TRAP_COST_NS": "4900"}).costs(MEASURED)
    assert asdict(costs) == pytest.approx(
        {"full_ns": 4900.0, "nested_ns": 2940.0, "counted_ns": 2450.0, "suspended_ns": 1960.0}
    )


def test_what_is_given_up_has_names() -> None:
    given_up = rehearsal_of({"INGERO_TEST_GIVE_UP": "launches,events"}).given_up
    assert given_up == {Level.LAUNCHES_OFF, Level.EVENTS_OFF}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("INGERO_TEST_TRAP_COST_NS", "5us"),
        ("INGERO_TEST_TRAP_COST_NS", "0"),
        ("INGERO_TEST_TRAP_COST_NS", "-4900"),
        ("INGERO_TEST_TRAP_COST_NS", "9" * 5000),
        ("INGERO_TEST_TRAP_COST_NS", "\u0664"),
        ("INGERO_TEST_GIVE_UP", "launch"),
        ("INGERO_TEST_GIVE_UP", "launches,"),
    ],
)
def test_what_has_no_meaning_is_refused_with_what_would(name: str, value: str) -> None:
    with pytest.raises(RehearsalError) as caught:
        rehearsal_of({name: value})
    assert name in str(caught.value)
    assert len(str(caught.value)) < 200
    assert caught.value.hint.startswith(f"{name}=")
