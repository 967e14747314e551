"""The demos, one scenario a file; each shows one cause, with a number of its own."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from ingero.demo.scenarios import (
    cold_start,
    cpu_contention,
    gpu_contention,
    incident,
    memcpy_bottleneck,
    periodic_spike,
)
from ingero.demo.scenarios.scenario import Scenario
from ingero.errors import IngeroError
from ingero.program import command

SCENARIOS: tuple[Scenario, ...] = (
    incident.SCENARIO,
    cold_start.SCENARIO,
    memcpy_bottleneck.SCENARIO,
    periodic_spike.SCENARIO,
    cpu_contention.SCENARIO,
    gpu_contention.SCENARIO,
)
ALIASES: Mapping[str, str] = MappingProxyType(dict.fromkeys(("gpu-steal", "contention"), "gpu-contention"))


class NoSuchScenarioError(IngeroError):
    """There is no demo of that name."""


def scenario_of(name: str) -> Scenario:
    """The scenario with this name or alias.

    Raises:
        NoSuchScenarioError: there is none.
    """
    wanted = ALIASES.get(name, name)
    found = next((scenario for scenario in SCENARIOS if scenario.name == wanted), None)
    if found is None:
        names = [scenario.name for scenario in SCENARIOS]
        near = difflib.get_close_matches(name.lower(), [*names, *ALIASES], n=1)
        meant = f"did you mean {command('demo', *near)}? " if near else ""
        raise NoSuchScenarioError(
            f"there is no demo {name!r}", hint=f"{meant}{command('demo')} takes {', '.join(names)}"
        )
    return found
