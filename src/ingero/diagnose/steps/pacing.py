"""What sets the pace of a program's steps: its host, the GPU, or both in turn, by the time it is blocked for the GPU.

On 27 recordings of real programs the share of time in calls that waited for the GPU told host-bound from GPU-bound in
20 of the 23 that it decided: at most 8% where the host set the pace, at least 30% where the GPU did.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingero.diagnose.steps.run_ahead import QUEUE_DEPTH
from ingero.events import SyncIntervalFlag

Array = np.ndarray[Any, np.dtype[Any]]

HOST_BOUND = 0.08  # of the time blocked, at most
GPU_BOUND = 0.30  # at least
_FULL_AFTER = QUEUE_DEPTH / GPU_BOUND  # launches: of so many the GPU works off the rest meanwhile


class PacedBy(enum.Enum):
    """Who sets the pace. The values are published."""

    HOST = "host"
    GPU = "gpu"
    MIXED = "mixed"
    UNKNOWN = "unknown"


class Lead(enum.IntEnum):
    """Who set the pace of one step, in arrays; by the waits around it (`leads`)."""

    NOT_KNOWN = 0
    HOST = 1
    GPU = 2


def paced_by(steps: Array) -> PacedBy:
    """Who paces these steps (`store.steps`), of either kind of array.

    Where launches had no durations, time on a full queue is missing: then only what is blocked anyway can tell.
    """
    if len(_timed(steps)):
        share = blocked_share(steps)
        if share <= HOST_BOUND:
            return PacedBy.HOST
        return PacedBy.GPU if share >= GPU_BOUND else PacedBy.MIXED
    return PacedBy.GPU if len(steps) and blocked_share(steps) >= GPU_BOUND else PacedBy.UNKNOWN


def is_untimed(steps: Array) -> Array:
    """Of which of these steps it is not known what their launches were blocked for on a full queue."""
    found: Array = (steps["flags"] & int(SyncIntervalFlag.UNTIMED)) != 0
    return found


def _timed(steps: Array) -> Array:
    timed: Array = steps[~is_untimed(steps)]
    return timed


def blocked_share(steps: Array) -> float:
    """Of their time, blocked in calls that waited for the GPU; of those whose launches were timed, if there are any."""
    timed = _timed(steps)
    steps = timed if len(timed) else steps
    return float(steps["busy_ns"].sum()) / max(float((steps["sync_end_ns"] - steps["prev_sync_end_ns"]).sum()), 1.0)


def paces(steps: Array) -> dict[int, PacedBy]:
    """Who paces the steps of each type, by step_type; where that is not known, who paces all of them."""
    found = {int(key): paced_by(steps[steps["step_type"] == key]) for key in np.unique(steps["step_type"])}
    of_all = paced_by(steps)
    return {key: of_all if pace is PacedBy.UNKNOWN else pace for key, pace in found.items()}


def refills(steps: Array, pace: Mapping[int, PacedBy]) -> Array:
    """Which steps of types that the GPU paces fill its queue: that a wait for the stream has emptied, or at the begin.

    They take as long as the host needs, until one of them has to wait for the GPU: no measure of either. What they are
    short by, the step that waited was long by. A host that the GPU paces has filled it after so many launches; one that
    has become slower may never fill it.
    """
    is_paced = np.isin(steps["step_type"], [key for key, one in pace.items() if one is PacedBy.GPU])
    has_waited = is_untimed(steps) | (
        steps["busy_ns"] > HOST_BOUND * (steps["sync_end_ns"] - steps["prev_sync_end_ns"])
    )
    empties = steps["syncs"] > 0
    last = np.maximum.accumulate(np.where(empties | has_waited, np.arange(len(steps)), -1))
    is_behind_wait: Array = (last < 0) | empties[last]
    launches = np.cumsum(steps["launches"])
    since = launches - np.where(last < 0, 0, launches[last])
    found: Array = is_paced & ~empties & ~has_waited & is_behind_wait & (since <= _FULL_AFTER)
    return found


def as_paced(steps: Array, pace: Mapping[int, PacedBy], leads: Array, ahead_ns: float) -> Array:
    """The steps as the diagnosis takes them: where the GPU paces, all of a step is its time until proven otherwise.

    The host works ahead then, so that what it does costs nothing as long as it still has to wait. Where the host paces,
    launches do not wait, whether their durations are known or not.

    pace: by type. leads: for each step what waits say (`leads.Leads.of`), which goes before it where launches had no
    durations. ahead_ns: the most that the host was ahead of the GPU; how long a step waited for that is not known then.
    """
    if not len(steps):
        return steps
    result: Array = steps.copy()
    is_told = is_untimed(steps) & (leads != Lead.NOT_KNOWN)
    gpu, host = (
        np.where(is_told, leads == lead, np.isin(steps["step_type"], [key for key, one in pace.items() if one is who]))
        for who, lead in ((PacedBy.GPU, Lead.GPU), (PacedBy.HOST, Lead.HOST))
    )
    result["flags"][host] &= ~int(SyncIntervalFlag.UNTIMED)
    result["first_launch_ns"][gpu] = steps["prev_sync_end_ns"][gpu]
    result["idle_ns"][gpu] = 0
    length_ns = steps["sync_end_ns"] - steps["prev_sync_end_ns"]
    result["busy_ns"][gpu] = np.where(is_untimed(steps), np.minimum(length_ns, ahead_ns), length_ns)[gpu]
    if "idle_state_ns" in (steps.dtype.names or ()):
        result["launch_state_ns"][gpu] = steps["idle_state_ns"][gpu]
        result["idle_state_ns"][gpu] = 0
    return result


def waited_ns(sync_intervals: Array) -> Array:
    """How long the thread waited for the GPU at the end of each sync interval; of a step, in all, as far as known."""
    found: Array = np.where(
        is_step(sync_intervals),
        sync_intervals["busy_ns"],
        sync_intervals["sync_end_ns"] - sync_intervals["sync_start_ns"],
    )
    return found


def is_step(sync_intervals: Array) -> Array:
    """Which of these are steps found by repetition."""
    found: Array = (sync_intervals["flags"] & int(SyncIntervalFlag.STEP)) != 0
    return found
