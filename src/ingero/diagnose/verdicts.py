"""What is said of a process as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.gpu_idle import GpuIdle
from ingero.diagnose.pacing import PacedBy, blocked_share, paced_by
from ingero.diagnose.queue_full import was_full
from ingero.diagnose.unseen_work import is_host_paced, is_unseen
from ingero.diagnose.utilization import Utilization, busy_words
from ingero.units import format_count, format_percent

Array = np.ndarray[Any, np.dtype[Any]]

GPU_BOUND = 0.90  # of wall time the GPU was busy, as far as the host can tell
QUEUE_FULL = 0.50  # of the sync intervals, before it is said
PROVEN = 0.50  # of wall time the host waited with everything enqueued: then the GPU was the slower one


def verdict(sync_intervals: Array, *, has_incident: bool, utilization: Utilization | None = None) -> str:
    """One sentence about most of the sync intervals of a main stream. utilization: of its GPU in the same seconds."""
    lengths = sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]
    unseen = is_unseen(sync_intervals)
    if 2 * int(lengths[unseen].sum()) > int(lengths.sum()):
        return _unseen(sync_intervals[unseen], has_incident=has_incident, utilization=utilization)
    return _seen(sync_intervals[~unseen], has_incident=has_incident, utilization=utilization)


def _unseen(sync_intervals: Array, *, has_incident: bool, utilization: Utilization | None) -> str:
    """Where launches were not traced: what the host waited is known, what the GPU did meanwhile is not."""
    wall = max(int((sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]).sum()), 1)
    waited = int((sync_intervals["gpu_done_ns"] - sync_intervals["sync_start_ns"]).sum()) / wall
    paced = "; the host set the pace" if is_host_paced(sync_intervals).mean() > PROVEN else ""
    known = (
        f"it waited for the GPU {format_percent(waited)} of the time{paced}; how long that was idle is not known, as "
        "not all launches and copies were traced"
    )
    known += f"; {utilization.kernels}" if utilization else ""
    return f"{known}; see the incidents" if has_incident else f"no time was lost against its best regime; {known}"


def _seen(sync_intervals: Array, *, has_incident: bool, utilization: Utilization | None) -> str:
    wall = max(int((sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]).sum()), 1)
    seen = int(sync_intervals["busy_ns"].sum()) / wall
    words = busy_words(seen, utilization)
    busy = utilization.bounded(seen) if utilization else seen
    full = was_full(sync_intervals)
    waited = (
        int(
            np.where(
                full,
                sync_intervals["busy_ns"],
                np.maximum(sync_intervals["gpu_done_ns"] - sync_intervals["sync_start_ns"], 0),
            ).sum()
        )
        / wall
    )
    if has_incident:
        return f"{words}; see the incidents"
    if busy < GPU_BOUND:
        return f"no time was lost against its best regime ({words})"
    if waited < PROVEN:
        return (
            f"no time was lost against its best regime; it enqueued {format_percent(max(seen - waited, 0))} of the "
            f"time, so that it is not proven that the GPU was busy{_told(seen, utilization)}"
        )
    queue = "; its queue was full, so that launches waited for the GPU" if full.mean() > QUEUE_FULL else ""
    return f"GPU-bound: no host-side cause ({words}){queue}"


def without_syncs() -> str:
    """Of a process whose launches were not traced, and that was never seen to wait for the GPU."""
    return (
        "its steps could not be followed: launches were not traced, and it was never seen to wait for the GPU; "
        "--max-overhead=0 traces them whatever that costs"
    )


def _told(busy: float, utilization: Utilization | None) -> str:
    return f"; {utilization.words(busy)}" if utilization else ""


def step_verdict(
    steps: Array,
    idle: GpuIdle,
    *,
    has_incident: bool,
    utilization: Utilization | None = None,
    by_waits: PacedBy = PacedBy.UNKNOWN,
) -> str:
    """The same of a process whose steps are found by repetition: who sets their pace, and what is known of the GPU.

    by_waits: who set it by how far ahead the host was when it waited (`leads`), where launches had no durations.
    """
    known = idle.words or "GPU idle is not known within steps"
    text = f"{_pace_words(steps, utilization, by_waits)}; {known}{_told(1 - idle.high, utilization)}"
    return f"{text}; see the incidents" if has_incident else f"{text}; no lost time against the baseline"


def _pace_words(steps: Array, utilization: Utilization | None, by_waits: PacedBy) -> str:
    blocked = f"blocked for the GPU {100 * blocked_share(steps):.0f}% of its steps' time"
    paced = paced_by(steps)
    if paced is PacedBy.GPU and utilization and utilization.contradicts(GPU_BOUND):
        return f"{blocked}, but not GPU-bound all the time"
    words = {PacedBy.HOST: "host-bound", PacedBy.GPU: "GPU-bound", PacedBy.MIXED: "paced by host and GPU in turn"}
    if paced in words:
        return f"{words[paced]}: {blocked}"
    if by_waits in words:
        return f"{words[by_waits]}, by how far ahead of the GPU the host was when it waited for it; {blocked} at least"
    return "what sets its pace is not known: whether its launches waited for the GPU was not seen"


def without_steps(launches: int, *, syncs: int) -> str:
    """The same of a process whose calls repeat nothing, and that never waits for the stream it works on."""
    waited = f"and {format_count(syncs)} GPU syncs that end no step" if syncs else "but no GPU sync"
    return (
        f"{format_count(launches)} launches {waited}, and no step was found that its calls repeat: lost time cannot be "
        "measured"
    )
