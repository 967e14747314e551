"""Whether the launches of a sync interval filled the launch queue: then the host was ahead, and its launches waited."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# That had not run when the sync began; a stream takes about a thousand launches before one has to wait.
MIN_QUEUED_LAUNCHES = 900


def was_queue_full(sync_intervals: Array) -> Array:
    """A mask of the sync intervals at whose end about as many launches were waiting as the queue can hold.

    A launch that waits for room in the queue is slow, but the GPU has no less work for that. If the host itself is too
    slow, none of its launches are waiting.
    """
    launches = np.maximum(sync_intervals["launches"], 1)
    per_launch = np.maximum(sync_intervals["busy_ns"], 1) / launches
    waiting: Array = np.maximum(sync_intervals["gpu_done_ns"] - sync_intervals["sync_start_ns"], 0) / per_launch
    has_many = (sync_intervals["launches"] > MIN_QUEUED_LAUNCHES) & (waiting >= MIN_QUEUED_LAUNCHES)
    full: Array = has_many & ~_has_run_dry(sync_intervals, per_launch)
    return full


def _has_run_dry(sync_intervals: Array, per_launch_ns: Array) -> Array:
    """A mask of the intervals in which the host paused between two checkpoints for longer than a full queue lasts."""
    if "checkpoint_step" not in (sync_intervals.dtype.names or ()):
        return np.zeros(len(sync_intervals), bool)
    steps = np.where(
        sync_intervals["checkpoint_step"] > 0, sync_intervals["checkpoint_step"], sync_intervals["launches"]
    )
    lasts_ns = (steps + MIN_QUEUED_LAUNCHES) * per_launch_ns
    before = sync_intervals["first_launch_ns"]
    dry = np.zeros(len(sync_intervals), bool)
    for time in (*sync_intervals["checkpoint_ns"].T, sync_intervals["sync_start_ns"]):
        dry |= (time > 0) & (time - before > lasts_ns)
        before = np.where(time > 0, time, before)
    return dry
