"""What is said of a process as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.pacing import PacedBy, blocked_share, paced_by
from ingero.diagnose.queue_full import was_full
from ingero.units import format_count, format_percent

Array = np.ndarray[Any, np.dtype[Any]]

GPU_BOUND = 0.90  # of wall time the device was busy, as far as the host can tell
QUEUE_FULL = 0.50  # of the epochs, before it is said
PROVEN = 0.50  # of wall time the host waited with everything enqueued: then the device was the slower one


def verdict(epochs: Array, *, has_incident: bool) -> str:
    """One sentence about the epochs of a process's main lane."""
    wall = max(int((epochs["b_ns"] - epochs["a_ns"]).sum()), 1)
    busy = int(epochs["x_ns"].sum()) / wall
    full = was_full(epochs)
    waited = int(np.where(full, epochs["x_ns"], np.maximum(epochs["r_ns"] - epochs["s_ns"], 0)).sum()) / wall
    if has_incident:
        return f"device busy {format_percent(busy)} of the time; see the incidents"
    if busy < GPU_BOUND:
        return f"no time was lost against its best regime (device busy {format_percent(busy)} of the time)"
    if waited < PROVEN:
        return (
            f"no time was lost against its best regime; it enqueued {format_percent(busy - waited)} of the time, "
            "so that it is not proven that the device was busy"
        )
    queue = "; its queue was full, so that launches waited for the device" if full.mean() > QUEUE_FULL else ""
    return f"GPU-bound: no host-side cause (device busy {format_percent(busy)} of the time){queue}"


def step_verdict(steps: Array, *, has_incident: bool) -> str:
    """The same of a process whose steps are found by repetition: who sets their pace, and what is not known."""
    share = f"{100 * blocked_share(steps):.0f}%"
    pace = {
        PacedBy.HOST: f"host-bound: blocked for the GPU {share} of its steps' time; GPU idle is not known within steps",
        PacedBy.GPU: f"GPU-bound: blocked for the GPU {share} of its steps' time",
        PacedBy.MIXED: f"paced by host and GPU in turn: blocked for the GPU {share} of its steps' time; "
        "GPU idle is not known within steps",
        PacedBy.UNKNOWN: "what sets its pace is not known: its launches were not timed",
    }[paced_by(steps)]
    return f"{pace}; see the incidents" if has_incident else f"{pace}; no lost time against the baseline"


def without_steps(launches: int, *, syncs: int) -> str:
    """The same of a process whose calls repeat nothing, and that never waits for the stream it works on."""
    waited = f"and {format_count(syncs)} GPU syncs that end no step" if syncs else "but no GPU sync"
    return (
        f"{format_count(launches)} launches {waited}, and no step was found that its calls repeat: lost time cannot be "
        "measured"
    )
