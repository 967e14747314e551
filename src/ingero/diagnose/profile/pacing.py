"""What paces a program: its host, its GPU, or each in turn; told from who waited for whom."""

from __future__ import annotations

import enum

# Of the time in which one waited for the other: half as much again as the reverse. Were that side free of cost, the
# program would gain clearly more than if the other were.
_DECIDED = 0.6

# Fewer activities are no program that has a pace: a saxpy, a warm-up.
MIN_ACTIVITIES = 50

# With less of the time waited by either nobody holds the other up, and the GPU that is busy all the time is the pace.
_NOBODY_WAITS = 0.10


class Pacing(enum.Enum):
    """Column `paced_by`."""

    HOST = "host"
    GPU = "gpu"
    MIXED = "mixed"
    UNKNOWN = "unknown"


TEXTS = {
    Pacing.HOST: "host-bound",
    Pacing.GPU: "GPU-bound",
    Pacing.MIXED: "host-bound and GPU-bound in turn",
    Pacing.UNKNOWN: "pacing unknown",
}


def pacing(busy_ratio: float, blocked_ratio: float | None) -> Pacing:
    """From the share of time that the GPU was busy, and that the launching threads waited for it while it was.

    Host-bound: the GPU waits for the host and hardly ever the reverse. GPU-bound: the reverse, or a GPU that is never
    idle, whoever waits. blocked_ratio: None where the file has no calls; then threads may have waited as long as the
    GPU was busy, and not at all.
    """
    if blocked_ratio is None:
        found = {pacing(busy_ratio, 0.0), pacing(busy_ratio, busy_ratio)}
        return found.pop() if len(found) == 1 else Pacing.UNKNOWN
    idle_ratio = 1 - busy_ratio
    if idle_ratio < _NOBODY_WAITS:
        return Pacing.GPU
    by_host = idle_ratio / (idle_ratio + blocked_ratio)
    if by_host >= _DECIDED:
        return Pacing.HOST
    return Pacing.GPU if by_host <= 1 - _DECIDED else Pacing.MIXED
