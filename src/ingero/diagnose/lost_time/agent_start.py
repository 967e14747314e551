"""Whether a lost time is that of the recorder's start, which takes CPUs from who is recorded."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.lost_time.time_ranges import MIN_LOST_NS, MIN_RATIO, TimeRange

Array = np.ndarray[Any, np.dtype[Any]]

SETTLING_NS = 2_500_000_000  # from the first second on: reading libraries takes 0.6 s of CPU more in two than later
_MOST_RATIO = 0.2  # of wall time; on two busy CPUs a start took 4 to 19%


def settled_at_ns(evidence: Evidence, session: int) -> int:
    """When the recorder of a session had started."""
    return evidence.counting_since_ns(session) + SETTLING_NS


def is_recorders_start(
    evidence: Evidence, session: int, sync_intervals: Array, excess: Array, time_range: TimeRange
) -> bool:
    """Whether what a time range of these sync intervals lost later is not worth telling by itself.

    What loses more than a start takes has another reason.
    """
    settled_ns, window = settled_at_ns(evidence, session), time_range.window
    if window.begin_ns >= settled_ns or time_range.lost_ns >= _MOST_RATIO * time_range.wall_ns:
        return False
    later = (sync_intervals["sync_end_ns"] >= settled_ns) & (sync_intervals["sync_end_ns"] < window.end_ns)
    lost_ns, wall_ns = (
        excess[later].sum(),
        (sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"])[later].sum(),
    )
    return bool(lost_ns < max(MIN_LOST_NS, MIN_RATIO * wall_ns))
