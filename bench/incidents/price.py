"""The simulated cost of a probed call in a labeled run: as measured, as on a slow host, or too high for launches."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ingero import given_up
from ingero.capture.budget.rehearsal import GIVE_UP, TRAP_COST
from ingero.diagnose.causes.rule import all_rules

_SLOW_NS = 4900  # of a probed call on a nested virtual machine, where 5 of 26 labeled runs were right; here it is 900


class Price(enum.Enum):
    """The value is the option's."""

    MEASURED = ""
    SLOW_TRAP = "slow-trap"
    NO_LAUNCHES = "no-launches"

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables that make the agent's overhead limiter assume this cost."""
        return _ENVIRONMENTS[self]

    @property
    def options(self) -> Sequence[str]:
        """The options of `ingero trace`: the default overhead limit, where the limiter has to decide."""
        return ("--max-overhead=2%",) if self is Price.SLOW_TRAP else ()

    def is_out_of_sight(self, causes: frozenset[str]) -> bool:
        """Whether one of these causes can only be proven by launches, which are not traced at this cost."""
        return self is Price.NO_LAUNCHES and not causes.isdisjoint(_need_launches())


_ENVIRONMENTS: Mapping[Price, Mapping[str, str]] = MappingProxyType(
    {
        Price.MEASURED: {},
        Price.SLOW_TRAP: {TRAP_COST: str(_SLOW_NS)},
        Price.NO_LAUNCHES: {GIVE_UP: "launches"},
    }
)


def _need_launches() -> frozenset[str]:
    return frozenset(rule.cause for rule in all_rules() if given_up.LAUNCHES_OFF.evidence & set(rule.needs))
