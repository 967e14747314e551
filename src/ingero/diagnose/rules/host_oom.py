"""The kernel killed a process of the job because the host had no memory left."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.evidence import Evidence
from ingero.diagnose.model import Finding, Fix
from ingero.diagnose.oom import HOST, finding, kills
from ingero.diagnose.rule import Rule

CAUSE = "host-oom"


def watch(evidence: Evidence) -> Iterator[Finding]:
    """Kills for want of the host's memory, and those of which the limit is not known."""
    for event in kills(evidence, (HOST, None)):
        unknown = "memory (whose limit was reached is not known)"
        yield finding(
            evidence,
            event,
            CAUSE,
            whose="the host's memory" if event.limit == HOST else unknown,
            fixes=(
                Fix(text="find who used it", command="sudo dmesg | grep -A40 'invoked oom-killer'"),
                Fix(text="give the others a limit", command="systemd-run -p MemoryMax=<bytes> <command>"),
            ),
        )


RULE = Rule(
    cause=CAUSE,
    title="killed because the host had no memory left",
    order=10,
    needs=("HOST",),
    shows="the kill with its victim, the victim's memory, and who asked for memory; critical for a traced process, "
    "an event of low weight for any other",
    limits="what other processes used at that moment stands in the kernel's log only",
    watch=watch,
)
