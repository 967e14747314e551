"""Texts of the verdict on a process as a whole, by its sync intervals or by its steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.evidence.nvml_utilization import Utilization, busy_words
from ingero.diagnose.steps.gpu_idle import GpuIdle
from ingero.diagnose.steps.pacing import PacedBy, blocked_share, paced_by
from ingero.diagnose.steps.queue_depth import was_queue_full
from ingero.diagnose.steps.untraced_launches import has_untraced_launches, is_host_paced
from ingero.units import format_count, format_percent

Array = np.ndarray[Any, np.dtype[Any]]

MIN_GPU_BOUND_RATIO = 0.90  # of wall time with the GPU busy, as far as the host can see
MIN_FULL_QUEUE_RATIO = 0.50  # of the sync intervals with a full launch queue, before the verdict says so
MIN_PROVEN_WAIT_RATIO = 0.50  # of wall time the host waited with everything enqueued: then the GPU was the slower one


def verdict(sync_intervals: Array, *, has_incident: bool, utilization: Utilization | None = None) -> str:
    """One sentence about most sync intervals of a main stream.

    utilization: that of the stream's GPU in the same seconds, as NVML reported it.
    """
    lengths = sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]
    unseen = has_untraced_launches(sync_intervals)
    if 2 * int(lengths[unseen].sum()) > int(lengths.sum()):
        return _unseen(sync_intervals[unseen], has_incident=has_incident, utilization=utilization)
    return _seen(sync_intervals[~unseen], has_incident=has_incident, utilization=utilization)


def _unseen(sync_intervals: Array, *, has_incident: bool, utilization: Utilization | None) -> str:
    """The verdict where launches were not traced: the host's waits are known, what the GPU did meanwhile is not."""
    wall = max(int((sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]).sum()), 1)
    waited = int((sync_intervals["gpu_done_ns"] - sync_intervals["sync_start_ns"]).sum()) / wall
    paced = "; the host set the pace" if is_host_paced(sync_intervals).mean() > MIN_PROVEN_WAIT_RATIO else ""
    known = (
        f"waited for the GPU {format_percent(waited)} of wall time{paced}; GPU idle time is unknown, because not "
        f"all launches and copies were traced"
    )
    known += f"; {utilization.kernels}" if utilization else ""
    return f"{known}; see incidents above" if has_incident else f"no lost time against the baseline; {known}"


def _seen(sync_intervals: Array, *, has_incident: bool, utilization: Utilization | None) -> str:
    wall = max(int((sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]).sum()), 1)
    seen = int(sync_intervals["busy_ns"].sum()) / wall
    words = busy_words(seen, utilization)
    busy = utilization.bounded(seen) if utilization else seen
    full = was_queue_full(sync_intervals)
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
        return f"{words}; see incidents above"
    if busy < MIN_GPU_BOUND_RATIO:
        return f"no lost time against the baseline ({words})"
    if waited < MIN_PROVEN_WAIT_RATIO:
        return (
            f"no lost time against the baseline; it was launching for {format_percent(max(seen - waited, 0))} of "
            f"wall time, so a busy GPU is not proven{_nvml_words(seen, utilization)}"
        )
    queue = "; its launch queue was full, so launches waited for the GPU" if full.mean() > MIN_FULL_QUEUE_RATIO else ""
    return f"GPU-bound: no host-side cause ({words}){queue}"


def no_sync_verdict() -> str:
    """The verdict on a process whose launches were not traced, and that was never seen to wait for the GPU."""
    return (
        "no GPU sync and no launches traced: lost time cannot be measured. Trace launches at any cost with "
        "--max-overhead=0"
    )


def _nvml_words(busy: float, utilization: Utilization | None) -> str:
    return f"; {utilization.words(busy)}" if utilization else ""


def step_verdict(
    steps: Array,
    idle: GpuIdle,
    *,
    has_incident: bool,
    utilization: Utilization | None = None,
    by_waits: PacedBy = PacedBy.UNKNOWN,
) -> str:
    """The verdict on a process whose steps are found by repetition: what paces them, and how idle the GPU was.

    by_waits: what paces them by how far ahead the host was when it waited (`leads`), where launches had no durations.
    """
    known = idle.words or "GPU idle time within steps is unknown"
    text = f"{_pace_words(steps, utilization, by_waits)}; {known}{_nvml_words(1 - idle.high, utilization)}"
    return f"{text}; see incidents above" if has_incident else f"{text}; no lost time against the baseline"


def _pace_words(steps: Array, utilization: Utilization | None, by_waits: PacedBy) -> str:
    blocked = f"blocked on the GPU {100 * blocked_share(steps):.0f}% of step time"
    paced = paced_by(steps)
    if paced is PacedBy.GPU and utilization and utilization.contradicts(MIN_GPU_BOUND_RATIO):
        return f"{blocked}, but not GPU-bound all the time"
    words = {PacedBy.HOST: "host-bound", PacedBy.GPU: "GPU-bound", PacedBy.MIXED: "paced by host and GPU in turn"}
    if paced in words:
        return f"{words[paced]}: {blocked}"
    if by_waits in words:
        return f"{words[by_waits]}, by how far the host ran ahead of the GPU; at least {blocked}"
    return "pace unknown: waits of its launches for the GPU were not traced"


def no_step_verdict(launches: int, *, syncs: int) -> str:
    """The verdict on a process whose calls repeat no step, and that never waits for the stream it works on."""
    waited = f"and {format_count(syncs)} GPU syncs that end no step" if syncs else "but no GPU sync"
    return (
        f"{format_count(launches)} launches {waited}, and no repeated step was found: lost time cannot be measured. "
        f"Read a result or call torch.cuda.synchronize() once per step"
    )
