"""A thread on the path could have run, and other processes had the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingero.diagnose.captures import delayed_graphs
from ingero.diagnose.cases import Case
from ingero.diagnose.limit_commands import cap
from ingero.diagnose.model import Finding, Fix
from ingero.diagnose.rule import Rule
from ingero.diagnose.runnable import Taker, apart, contention, of_kind, weighty
from ingero.diagnose.stretches import UNOWNED_RATIO
from ingero.diagnose.weights import lower

CAUSE = "cpu-contention"


def find(case: Case) -> Iterator[Finding]:
    """Runnable time that named processes of the same container, of the host, or the recorder itself took."""
    others = weighty(of_kind(case, Taker.OTHER))
    finding = contention(
        case,
        CAUSE,
        Taker.OTHER,
        text="{who} lost {lost} waiting for a CPU while {takers} ran",
        fixes=lower(case, others),  # asks for their control groups only where there is something to repair
    )
    if finding:
        graphs, move = delayed_graphs(case, finding.claims), apart(case, others)
        chain = (*finding.chain, graphs) if graphs else finding.chain
        home = case.evidence.container_of(case.process.cgroup_id)
        caps = (cap(case.evidence, one.pid, one.name) for one in others if one.container not in ("", home))
        said = {one.command for one in finding.fixes}
        more = [one for one in (*caps, move) if one and one.command not in said]
        yield replace(finding, chain=chain, fixes=(*finding.fixes, *more))
    if own := _of_the_recorder(case):
        yield own


def _of_the_recorder(case: Case) -> Finding | None:
    """What ingero took itself, told where that is more than what two healthy minutes differ by."""
    finding = contention(
        case,
        CAUSE,
        Taker.AGENT,
        text="{who} lost {lost} waiting for a CPU while ingero itself ran: {takers}",
        fixes=(Fix(text="record less", command="sudo ingero trace --stack=false"),),
    )
    return replace(finding, least_ratio=UNOWNED_RATIO) if finding else None


RULE = Rule(
    cause=CAUSE,
    title="other processes had the CPU",
    order=30,
    needs=("epochs", "culprits"),
    shows="the run-queue clocks of the threads on the path, and who ran on their CPU meanwhile, to the nanosecond",
    limits="CPU time taken by the hypervisor or by interrupts inside a slice counts as the victim's own",
    find=find,
)
