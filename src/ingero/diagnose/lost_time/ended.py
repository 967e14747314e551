"""Whether something that stood still, or went on for long, is over: then it is as bad as what was lost by it."""

from __future__ import annotations

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Severity, severity_of

_SEEN_EACH_NS = 2_500_000_000  # what is open is seen each second, and so is what runs


def has_passed(evidence: Evidence, process: int, seen_ns: int) -> bool:
    """Whether what was last seen of a process at seen_ns would have been seen since, if it went on.

    Not so where the process ended in it.
    """
    known = evidence.processes.get(process)
    lived_ns = evidence.window.end_ns
    if known and known.exit_ns:
        lived_ns = min(lived_ns, known.exit_ns)
    return lived_ns - seen_ns > _SEEN_EACH_NS


def severity_of_stop(evidence: Evidence, length_ns: int, *, is_over: bool) -> Severity:
    """Of something that stands still: critical while it does, then by its share of the time that is looked at."""
    return severity_of(length_ns / max(evidence.window.duration_ns, 1)) if is_over else Severity.CRITICAL
