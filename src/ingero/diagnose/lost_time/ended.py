"""Whether a standstill, or a call that ran for long, has ended: then its severity follows from the time lost by it."""

from __future__ import annotations

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Severity, severity_of

_SEEN_EVERY_NS = 2_500_000_000  # open calls and running threads are recorded every second


def has_ended(evidence: Evidence, process: int, seen_ns: int) -> bool:
    """Whether something last seen of a process at seen_ns would have been seen again since if it were ongoing.

    False where the process itself ended soon after that.
    """
    known = evidence.processes.get(process)
    lived_ns = evidence.window.end_ns
    if known and known.exit_ns:
        lived_ns = min(lived_ns, known.exit_ns)
    return lived_ns - seen_ns > _SEEN_EVERY_NS


def severity_of_stop(evidence: Evidence, length_ns: int, *, is_over: bool) -> Severity:
    """The severity of a standstill: critical while it lasts, afterwards by its share of the window."""
    return severity_of(length_ns / max(evidence.window.duration_ns, 1)) if is_over else Severity.CRITICAL
