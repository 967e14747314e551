"""Whether the launches of an epoch had filled the device's queue: then the host was ahead, and its launches waited."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

AHEAD = 900  # launches that had not run when the drain began; a stream takes about a thousand before a launch waits


def was_full(epochs: Array) -> Array:
    """Per epoch, whether about as many launches were still waiting at its end as the queue can hold.

    Launches that wait for a place in the queue are slow, but the device has never less to do by that. A host that is
    itself too slow has none of its launches waiting.
    """
    launches = np.maximum(epochs["launches"], 1)
    per_launch = np.maximum(epochs["x_ns"], 1) / launches
    waiting: Array = np.maximum(epochs["r_ns"] - epochs["s_ns"], 0) / per_launch
    full: Array = (epochs["launches"] > AHEAD) & (waiting >= AHEAD) & ~_has_run_dry(epochs, per_launch)
    return full


def _has_run_dry(epochs: Array, per_launch_ns: Array) -> Array:
    """Whether the host is seen to pause between two checkpoints for longer than a full queue lasts."""
    if "checkpoint_step" not in (epochs.dtype.names or ()):
        return np.zeros(len(epochs), bool)
    steps = np.where(epochs["checkpoint_step"] > 0, epochs["checkpoint_step"], epochs["launches"])
    lasts_ns = (steps + AHEAD) * per_launch_ns
    before = epochs["f_ns"]
    dry = np.zeros(len(epochs), bool)
    for time in (*epochs["checkpoint_ns"].T, epochs["s_ns"]):
        dry |= (time > 0) & (time - before > lasts_ns)
        before = np.where(time > 0, time, before)
    return dry
