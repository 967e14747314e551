"""The kernel OOM-killed a process because the host had no memory left."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.causes.host_memory.oom_kills import HOST, kills, oom_finding
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Finding, Fix

CAUSE = "host-oom"


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """OOM kills because the host was out of memory, and those whose limit is unknown."""
    for event in kills(evidence, (HOST, None)):
        unknown = "memory (whose limit was reached is unknown)"
        yield oom_finding(
            evidence,
            event,
            CAUSE,
            whose="the host's memory" if event.limit == HOST else unknown,
            fixes=(
                Fix(text="find the processes that used it", command="sudo dmesg | grep -A40 'invoked oom-killer'"),
                Fix(text="give the others a limit", command="systemd-run -p MemoryMax=<bytes> <command>"),
            ),
        )


RULE = Rule(
    cause=CAUSE,
    title="killed because the host had no memory left",
    order=10,
    needs=("HOST",),
    shows="the kill, the killed process with its memory, and which process asked for memory; CRITICAL for a traced "
    "process, LOW for any other",
    limits="the memory of other processes at that time is only in the kernel log",
    find_events=find_events,
)
