"""What paces a program: its host, its GPU, or each in turn, judged by which side waited for the other."""

from __future__ import annotations

import enum

# Share of all waiting time, GPU idle and host blocked, from which on one side paces: it makes the other wait half as
# much again as the reverse. Removing its cost would gain clearly more than removing the other's.
_MIN_PACING_SHARE = 0.6

# With fewer GPU activities a program has no pace: a saxpy, a warm-up.
MIN_ACTIVITIES = 50

# With less GPU idle time than this the host does not hold the GPU up: the GPU, busy all the time, sets the pace.
_MAX_UNPACED_IDLE_RATIO = 0.10


class Pacing(enum.Enum):
    """What paces a program; the value is stored in column `paced_by`."""

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
    """What paces a program, by the share of time the GPU was busy and the share the launching threads waited for it.

    Host-bound: the GPU waits for the host and hardly ever the reverse. GPU-bound: the reverse, or a GPU that is never
    idle, no matter what waits. blocked_ratio: None where the file has no calls; threads may then have waited any time
    from none to as long as the GPU was busy.
    """
    if blocked_ratio is None:
        found = {pacing(busy_ratio, 0.0), pacing(busy_ratio, busy_ratio)}
        return found.pop() if len(found) == 1 else Pacing.UNKNOWN
    idle_ratio = 1 - busy_ratio
    if idle_ratio < _MAX_UNPACED_IDLE_RATIO:
        return Pacing.GPU
    by_host = idle_ratio / (idle_ratio + blocked_ratio)
    if by_host >= _MIN_PACING_SHARE:
        return Pacing.HOST
    return Pacing.GPU if by_host <= 1 - _MIN_PACING_SHARE else Pacing.MIXED
