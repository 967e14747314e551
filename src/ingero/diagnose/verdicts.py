"""What is said of a process as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

GPU_BOUND = 0.90  # of wall time the device was busy


def verdict(epochs: Array, *, has_incident: bool) -> str:
    """One sentence about the epochs of a process's main lane."""
    wall = max(int((epochs["b_ns"] - epochs["a_ns"]).sum()), 1)
    busy = int(epochs["x_ns"].sum()) / wall
    if has_incident:
        return f"device busy {busy:.0%} of the time; see the incidents"
    if busy >= GPU_BOUND:
        return f"GPU-bound: no host-side cause (device busy {busy:.0%} of the time)"
    return f"no time was lost against its best regime (device busy {busy:.0%} of the time)"
