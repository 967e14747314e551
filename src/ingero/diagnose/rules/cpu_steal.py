"""The hypervisor ran others on the machine's CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases import Case
from ingero.diagnose.excess import DEVICE, UNKNOWN
from ingero.diagnose.model import Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.rule import Rule
from ingero.diagnose.stolen import stolen
from ingero.units import format_percent

CAUSE = "cpu-steal"
_MOSTLY = 0.5  # of the loss: with less of it something else is slower, too
_LONGER = ("run", "sleep", UNKNOWN, DEVICE)  # what a guest sees of it: slices, timers and interrupts that take longer


def find(case: Case) -> Iterator[Finding]:
    """Time lost in the seconds, and at most by the amounts, that were stolen beyond the reference."""
    if case.kind is not FindingKind.INCIDENT:
        return
    found = stolen(case)
    if found is None or found.usual_ratio is None or found.share < _MOSTLY:
        return
    claims = case.take(Part, _LONGER, found.share * case.loss_ns)
    if not claims:
        return
    lost = sum(claims.values())
    yield Finding(
        cause=CAUSE,
        resource="cpu",
        root="hypervisor",
        summary=f"{case.who} lost {case.amount(lost)} because the hypervisor ran others on the CPUs of this machine: "
        f"{format_percent(found.ratio)} of one was stolen meanwhile (usually {format_percent(found.usual_ratio)})",
        claims=claims,
        chain=(
            Link(
                text="the hypervisor took CPUs away",
                seen_ns=int(found.ratio * case.wall_ns),
                expected_ns=int(found.usual_ratio * case.wall_ns),
                structure="the kernel's steal clock of each CPU; no more is charged than was stolen in the same second",
                order="in the seconds in which the time was lost",
            ),
        ),
        fixes=(Fix(text="ask for CPUs that are not shared, or move to another host", command="vmstat 1  # column st"),),
        evidence={"stolen (ratio)": round(found.ratio, 3), "usually stolen (ratio)": round(found.usual_ratio, 3)},
    )


RULE = Rule(
    cause=CAUSE,
    title="the hypervisor took the CPU",
    order=15,
    needs=("epochs", "cpu_seconds"),
    shows="the steal time of the worst CPU, second by second, against the reference, and that the time was lost in "
    "those seconds",
    limits="a guest does not see which thread it hit: what the CPU's own steal clock allows for is the most that is "
    "charged; where that is less than half of a loss, or the reference shorter than a second, nothing is claimed",
    find=find,
)
