"""A lower bound of the time in which a stream had work, from progress marks, where no wait shows when it was done.

A mark says up to which position the stream was done, and up to which one work was queued. If the position at the next
mark was already queued at this one, the stream never ran dry in between.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MIN_BLOCKED = 0.3  # of the time beside a mark, in calls that waited; with less a launch may be slow for another reason
MIN_MARKS = 5  # with fewer marks no bound is given


def queued_ns(marks: Array) -> int:
    """The least time in which the stream of these marks had work queued or running, ns.

    marks: of one stream, by time (`store.arrays.MARK_DTYPE`). A wait for the stream proves that it had work. A long
    launch proves a full queue only beside other blocked time: where launches take little time, it had another reason.
    """
    if len(marks) < MIN_MARKS:
        return 0
    gaps = np.diff(marks["time_ns"])
    blocked = np.minimum(marks["blocked_ns"][1:], gaps)
    is_paced = blocked >= MIN_BLOCKED * gaps
    believed = (marks["is_full"] == 0) | np.append(is_paced, False) | np.insert(is_paced, 0, False)
    never_dry = believed[:-1] & believed[1:] & (marks["position"][1:] <= marks["queued"][:-1])
    return int(np.where(never_dry, gaps, np.where(believed[1:], blocked, 0)).sum())
