"""What is said of a process as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

GPU_BOUND = 0.90  # of wall time the device was busy, as far as the host can tell
PROVEN = 0.50  # of wall time the host waited with everything enqueued: then the device was the slower one


def verdict(epochs: Array, *, has_incident: bool) -> str:
    """One sentence about the epochs of a process's main lane."""
    wall = max(int((epochs["b_ns"] - epochs["a_ns"]).sum()), 1)
    busy = int(epochs["x_ns"].sum()) / wall
    waited = int(np.maximum(epochs["r_ns"] - epochs["s_ns"], 0).sum()) / wall
    if has_incident:
        return f"device busy {busy:.0%} of the time; see the incidents"
    if busy < GPU_BOUND:
        return f"no time was lost against its best regime (device busy {busy:.0%} of the time)"
    if waited < PROVEN:
        return (
            f"no time was lost against its best regime; it enqueued {busy - waited:.0%} of the time, so that it is "
            "not proven that the device was busy"
        )
    return f"GPU-bound: no host-side cause (device busy {busy:.0%} of the time)"
