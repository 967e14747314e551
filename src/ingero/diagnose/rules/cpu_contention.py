"""The thread on the path could have run, and other processes had the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases import Case
from ingero.diagnose.model import Finding, Fix, Link
from ingero.diagnose.rule import Rule
from ingero.diagnose.runnable import claim, named, neighbours, own, takers, weighty

CAUSE = "cpu-contention"


def find(case: Case) -> Iterator[Finding]:
    """Runnable time that named processes of the same container, or of the host, took."""
    elsewhere = {one.pid for one in neighbours(case)} if case.evidence.container_of(case.process.cgroup_id) else set()
    mine = [one for one in takers(case) if not own(case, one) and one.pid not in elsewhere]
    claims = claim(case, mine)
    if not claims:
        return
    culprits = weighty(mine)
    lost, victim = sum(claims.values()), case.process
    pids = " ".join(str(one.pid) for one in culprits[:8])
    yield Finding(
        cause=CAUSE,
        resource="cpu",
        root="host",
        summary=f"{case.who} lost {case.amount(lost)} waiting for a CPU while {named(culprits)} ran",
        claims=claims,
        culprits=tuple(culprits),
        chain=(
            Link(
                text=f"{victim.name} was runnable, not running, on its path to the device",
                seen_ns=lost,
                structure="its own run-queue clock within the epochs",
                order="each wait was charged to whoever ran on that CPU during it",
            ),
        ),
        fixes=(
            Fix(text="move them to other cores or lower their weight", command=f"sudo renice -n 19 -p {pids}"),
            Fix(text="or keep cores for the training process", command=f"sudo taskset -acp <cores> {victim.pid}"),
        ),
        evidence={"switches": sum(one.switches or 0 for one in culprits), "takers": len(mine)},
    )


RULE = Rule(
    cause=CAUSE,
    title="other processes had the CPU",
    order=30,
    needs=("epochs", "culprits"),
    shows="the run-queue clock of the thread on the path, and who ran on its CPU meanwhile, to the nanosecond",
    limits="CPU time taken by the hypervisor or by interrupts inside a slice counts as the victim's own",
    find=find,
)
