"""The kernel OOM-killed a process because its cgroup had reached its memory limit."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.causes.host_memory.oom_kills import CGROUP, kills, oom_finding
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Finding, Fix
from ingero.diagnose.limit_commands import cgroup_by_id, set_memory

CAUSE = "cgroup-oom"


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """OOM kills at a cgroup's limit."""
    for event in kills(evidence, (CGROUP,)):
        place = evidence.container_of(event.cgroup_id)
        raised = Fix(
            text=f"raise the memory limit{'' if place else ' of its cgroup'}",
            command=set_memory(cgroup_by_id(evidence, event.cgroup_id)),
        )
        yield oom_finding(
            evidence,
            event,
            CAUSE,
            whose=f"the memory limit of {place or 'its cgroup'}",
            fixes=(
                raised,
                Fix(text="or use less memory", command="DataLoader(num_workers=<fewer>, prefetch_factor=1)"),
            ),
        )


RULE = Rule(
    cause=CAUSE,
    title="killed at a cgroup's memory limit",
    order=10,
    needs=("HOST",),
    shows="the kill, the killed process with its memory, and which process asked for memory; CRITICAL for a traced "
    "process or its worker, LOW for any other",
    limits="with nested cgroups, which one reached its limit is unknown",
    find_events=find_events,
)
