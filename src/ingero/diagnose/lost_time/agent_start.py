"""Whether time was lost to the start of the agent, which takes CPU time from the traced processes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.lost_time.time_ranges import MIN_LOST_NS, MIN_LOST_RATIO, TimeRange

Array = np.ndarray[Any, np.dtype[Any]]

# From the first second on: in the first two, reading libraries takes 0.6 s more of CPU time than later.
SETTLING_NS = 2_500_000_000
_MAX_LOST_RATIO = 0.2  # of wall time; on two busy CPUs a start took 4 to 19%


def settled_at_ns(evidence: Evidence, session: int) -> int:
    """When the agent had started in a session, unix ns."""
    return evidence.counting_since_ns(session) + SETTLING_NS


def is_agent_start(
    evidence: Evidence, session: int, sync_intervals: Array, excess: Array, time_range: TimeRange
) -> bool:
    """Whether the time that a time range lost after the agent's start is not worth reporting by itself.

    A range that lost more than a start can take has another reason.
    """
    settled_ns, window = settled_at_ns(evidence, session), time_range.window
    if window.begin_ns >= settled_ns or time_range.lost_ns >= _MAX_LOST_RATIO * time_range.wall_ns:
        return False
    later = (sync_intervals["sync_end_ns"] >= settled_ns) & (sync_intervals["sync_end_ns"] < window.end_ns)
    wall_ns = (sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"])[later].sum()
    return bool(excess[later].sum() < max(MIN_LOST_NS, MIN_LOST_RATIO * wall_ns))
