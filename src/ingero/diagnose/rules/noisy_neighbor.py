"""A thread on the path could have run, and another container had the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingero.diagnose.cases import Case
from ingero.diagnose.limit_commands import cap, exclusive_cores, group_of
from ingero.diagnose.model import Culprit, Finding, Fix
from ingero.diagnose.rule import Rule
from ingero.diagnose.runnable import Taker, contention, of_kind, weighty
from ingero.diagnose.weights import lower

CAUSE = "noisy-neighbor"
_MOST_FIXES = 3


def find(case: Case) -> Iterator[Finding]:
    """Runnable time that processes of other containers took from a victim in a container."""
    finding = contention(
        case,
        CAUSE,
        Taker.NEIGHBOUR,
        text="{who} lost {lost} waiting for a CPU while its neighbour {takers} ran",
        fixes=(),
    )
    if finding:
        yield replace(finding, fixes=tuple(_fixes(case, weighty(of_kind(case, Taker.NEIGHBOUR)))))


def _fixes(case: Case, takers: list[Culprit]) -> Iterator[Fix]:
    """Cores of its own for the victim, or a limit for each neighbour, by who runs it."""
    if exclusive := exclusive_cores(group_of(case.evidence, case.process.cgroup_id)):
        yield exclusive
    for one in takers[:_MOST_FIXES]:
        capped = cap(case.evidence, one.pid, one.name)
        yield from [capped] if capped else _of_the_host(case, one)


def _of_the_host(case: Case, taker: Culprit) -> Iterator[Fix]:
    for fix in lower(case, [taker]):
        yield replace(fix, text=f"or lower the weight of {taker.name} [{taker.pid}], a process of the host")


RULE = Rule(
    cause=CAUSE,
    title="another container had the CPU",
    order=29,
    needs=("epochs", "culprits", "raw_cgroups"),
    shows="as cpu-contention, with the container of each process that ran instead",
    limits="processes on the host itself count as cpu-contention unless the victim is in a container",
    find=find,
)
