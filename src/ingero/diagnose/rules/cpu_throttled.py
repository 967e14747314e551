"""The kernel took the CPU away because the control group had used up its quota."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases import Case
from ingero.diagnose.model import Finding, Fix, Link
from ingero.diagnose.rule import Rule
from ingero.diagnose.runnable import HOST_PARTS

CAUSE = "cpu-throttled"


def find(case: Case) -> Iterator[Finding]:
    """Time of the throttled clock, and of a worker's that the process waited for."""
    claims = dict(case.take(HOST_PARTS, ("throttled",)))
    for bucket, ns in case.take_sleep("throttled").items():
        claims[bucket] = claims.get(bucket, 0) + ns
    if not claims:
        return
    lost = sum(claims.values())
    place = case.evidence.container_of(case.process.cgroup_id)
    periods = sum(one.nr_throttled for one in case.evidence.throttling(case.window))
    yield Finding(
        cause=CAUSE,
        resource="cpu quota",
        root=place or str(case.process.cgroup_id or case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} because its CPU quota was used up",
        claims=claims,
        chain=(
            Link(
                text="the kernel throttled the thread on the path",
                seen_ns=lost,
                expected_ns=0,
                structure="the throttled clock of its own run queue",
                order="from the moment the quota was used up to the next period",
            ),
        ),
        fixes=(
            Fix(
                text="raise the CPU limit, or remove it and keep the request",
                command="kubectl set resources deployment/<name> --limits=cpu=<more>",
            )
            if place
            else Fix(text="raise the quota of its control group", command="echo max > <cgroup>/cpu.max"),
        ),
        evidence={"periods throttled": periods},
    )


RULE = Rule(
    cause=CAUSE,
    title="throttled by a CPU quota",
    order=10,
    needs=("epochs",),
    shows="the kernel's own throttled clock of the thread on the path",
    limits="before Linux 6.18 a task throttled through a parent group is seen by its own run queue's clock",
    find=find,
)
