"""A thread on the path could have run, and another container had the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases import Case
from ingero.diagnose.model import Finding, Fix
from ingero.diagnose.rule import Rule
from ingero.diagnose.runnable import Taker, contention

CAUSE = "noisy-neighbor"


def find(case: Case) -> Iterator[Finding]:
    """Runnable time that processes of other containers took from a victim in a container."""
    finding = contention(
        case,
        CAUSE,
        Taker.NEIGHBOUR,
        text="{who} lost {lost} waiting for a CPU while its neighbour {takers} ran",
        fixes=(
            Fix(text="give the victim exclusive cores: Guaranteed QoS with the static CPU manager"),
            Fix(
                text="or cap the neighbour",
                command="kubectl set resources deployment/<neighbour> --limits=cpu=<cores>",
            ),
        ),
    )
    if finding:
        yield finding


RULE = Rule(
    cause=CAUSE,
    title="another container had the CPU",
    order=29,
    needs=("epochs", "culprits", "raw_cgroups"),
    shows="as cpu-contention, with the container of each process that ran instead",
    limits="processes on the host itself count as cpu-contention unless the victim is in a container",
    find=find,
)
