"""How long a stream surely had work where no wait sees it done: bounds from marks of progress.

At a mark the stream was done up to a position, and more was queued. If all that it was done with at the next mark had
been queued at this one, it never ran dry in between.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

PACED = 0.3  # of the time beside a mark in calls that waited; else a launch may be slow for another reason
MIN_MARKS = 5  # fewer say little of any length of time


def queued_ns(marks: Array) -> int:
    """For how long the stream of these marks had work queued or running, at least.

    marks: of one stream, by time (`store.arrays.MARK_DTYPE`). A wait for the stream has found it busy for certain. A
    launch that took long need not have waited for room in the queue: where launches take little of the time it has not.
    """
    if len(marks) < MIN_MARKS:
        return 0
    gaps = np.diff(marks["time_ns"])
    blocked = np.minimum(marks["blocked_ns"][1:], gaps)
    is_paced = blocked >= PACED * gaps
    believed = (marks["is_full"] == 0) | np.append(is_paced, False) | np.insert(is_paced, 0, False)
    never_dry = believed[:-1] & believed[1:] & (marks["position"][1:] <= marks["queued"][:-1])
    return int(np.where(never_dry, gaps, np.where(believed[1:], blocked, 0)).sum())
