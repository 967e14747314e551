"""Whether a sync interval's launches had filled the GPU's queue: then the host was ahead, and its launches waited."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

AHEAD = 900  # launches that had not run when the sync began; a stream takes about a thousand before a launch waits


def was_full(sync_intervals: Array) -> Array:
    """Per sync interval, whether about as many launches were still waiting at its end as the queue can hold.

    Launches that wait for a place in the queue are slow, but the GPU has never less to do by that. A host that is
    itself too slow has none of its launches waiting.
    """
    launches = np.maximum(sync_intervals["launches"], 1)
    per_launch = np.maximum(sync_intervals["busy_ns"], 1) / launches
    waiting: Array = np.maximum(sync_intervals["gpu_done_ns"] - sync_intervals["sync_start_ns"], 0) / per_launch
    full: Array = (sync_intervals["launches"] > AHEAD) & (waiting >= AHEAD) & ~_has_run_dry(sync_intervals, per_launch)
    return full


def _has_run_dry(sync_intervals: Array, per_launch_ns: Array) -> Array:
    """Whether the host is seen to pause between two checkpoints for longer than a full queue lasts."""
    if "checkpoint_step" not in (sync_intervals.dtype.names or ()):
        return np.zeros(len(sync_intervals), bool)
    steps = np.where(
        sync_intervals["checkpoint_step"] > 0, sync_intervals["checkpoint_step"], sync_intervals["launches"]
    )
    lasts_ns = (steps + AHEAD) * per_launch_ns
    before = sync_intervals["first_launch_ns"]
    dry = np.zeros(len(sync_intervals), bool)
    for time in (*sync_intervals["checkpoint_ns"].T, sync_intervals["sync_start_ns"]):
        dry |= (time > 0) & (time - before > lasts_ns)
        before = np.where(time > 0, time, before)
    return dry
