"""Puts a scenario together from a kind, a dose, a way of waiting and a schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bench.incidents.plan.kinds import KINDS
from bench.incidents.scenario import Disturbance, Expected, Scenario, Sched, Schedule


def disturbed(
    kind: str,
    dose: float,
    sched: Sched,
    label: str = "",
    schedule: Schedule = Schedule(),  # noqa: B008 it is frozen
    *,
    arguments: Iterable[str] = (),
    blind: str = "",
) -> Scenario:
    """One disturbance of the workload that its kind is about; `label` says in the name what is special."""
    about = KINDS[kind]
    expected: tuple[Expected, ...] = (about.expected,) if about.expected else ()
    if blind:
        expected = tuple(replace(answer, blind=blind) for answer in expected)
    parts = [kind, str(round(100 * dose)), sched, *([label] if label else [])]
    return Scenario(
        name="-".join(parts),
        group=label or "fault",
        workload=about.workload,
        arguments=tuple(arguments),
        sched=sched,
        disturbances=(Disturbance(kind=kind, dose=dose),),
        schedule=schedule,
        expected=expected,
        allowed=about.allowed,
    )
