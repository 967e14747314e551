"""Makes the overhead limiter act as on a slower machine: for tests and benches, by two environment variables.

INGERO_TEST_TRAP_COST_NS: what a probed call is taken to cost, whatever was measured; the other costs in proportion.
INGERO_TEST_GIVE_UP: what is not traced from the start and never again: launches, copies, events, memory; several: a,b.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from ingero.capture.budget.levels import Level, Levels
from ingero.capture.budget.trap_cost import TrapCosts
from ingero.errors import IngeroError

TRAP_COST, GIVE_UP = "INGERO_TEST_TRAP_COST_NS", "INGERO_TEST_GIVE_UP"
_MAX_NS = 1_000_000  # a millisecond a call: no machine is as slow, so it is a slip
_LEVELS: Mapping[str, Level] = MappingProxyType(
    {
        "launches": Level.LAUNCHES_OFF,
        "copies": Level.COPIES_OFF,
        "events": Level.EVENTS_OFF,
        "memory": Level.MEMORY_OFF,
    }
)


class RehearsalError(IngeroError):
    """One of the environment variables has an invalid value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What is simulated. trap_cost_ns: of a probed call; None: as measured. given_up: levels always in force."""

    trap_cost_ns: float | None = None
    given_up: Levels = frozenset()

    def costs(self, measured: TrapCosts) -> TrapCosts:
        """The trap costs that the limiter uses."""
        if self.trap_cost_ns is None:
            return measured
        scale = self.trap_cost_ns / max(measured.full_ns, 1.0)
        return TrapCosts(**{cost.name: getattr(measured, cost.name) * scale for cost in fields(measured)})


NO_REHEARSAL = Rehearsal()


def rehearsal_of(environment: Mapping[str, str]) -> Rehearsal:
    """The rehearsal that the environment asks for; an empty variable asks for nothing.

    Raises:
        RehearsalError: a variable is none of what it may be.
    """
    cost, names = environment.get(TRAP_COST, ""), environment.get(GIVE_UP, "")
    return Rehearsal(
        trap_cost_ns=_cost_ns(cost) if cost else None,
        given_up=frozenset(_level(name) for name in names.split(",")) if names else frozenset(),
    )


def _cost_ns(text: str) -> float:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_NS))
    if not is_number or not 0 < int(text) <= _MAX_NS:
        raise RehearsalError(
            f"{TRAP_COST}={text[:40]!r} is not a number of nanoseconds from 1 to {_MAX_NS}", hint=f"{TRAP_COST}=4900"
        )
    return float(text)


def _level(name: str) -> Level:
    if name not in _LEVELS:
        raise RehearsalError(f"{GIVE_UP}: {name[:40]!r} is none of {', '.join(_LEVELS)}", hint=f"{GIVE_UP}=launches")
    return _LEVELS[name]
