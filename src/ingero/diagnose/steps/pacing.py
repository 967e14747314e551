"""What sets the pace of a program's steps: the host, the GPU, or both in turn, by the time blocked for the GPU.

On 27 recordings of real programs the share of time in calls that waited for the GPU decided 23, and was right for 20:
at most 8% where the host set the pace, at least 30% where the GPU did.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingero.diagnose.steps.run_ahead import QUEUE_DEPTH
from ingero.events import SyncIntervalFlag

Array = np.ndarray[Any, np.dtype[Any]]

HOST_BOUND = 0.08  # share of time blocked for the GPU, at most
GPU_BOUND = 0.30  # share of time blocked for the GPU, at least
_FULL_AFTER = QUEUE_DEPTH / GPU_BOUND  # launches: the GPU works off all but QUEUE_DEPTH of them meanwhile


class PacedBy(enum.Enum):
    """What sets the pace. The values are published."""

    HOST = "host"
    GPU = "gpu"
    MIXED = "mixed"
    UNKNOWN = "unknown"


class Lead(enum.IntEnum):
    """What set the pace of one step by the waits around it (`host_lead.HostLeads`), as a number in arrays."""

    NOT_KNOWN = 0
    HOST = 1
    GPU = 2


def paced_by(steps: Array) -> PacedBy:
    """What sets the pace of these steps, whole or in short.

    Where launches have no durations, the time on a full queue is missing, so that only a large blocked share decides.
    """
    if len(_timed(steps)):
        share = blocked_share(steps)
        if share <= HOST_BOUND:
            return PacedBy.HOST
        return PacedBy.GPU if share >= GPU_BOUND else PacedBy.MIXED
    return PacedBy.GPU if len(steps) and blocked_share(steps) >= GPU_BOUND else PacedBy.UNKNOWN


def is_untimed(steps: Array) -> Array:
    """A mask of the steps whose launches have no durations, so that their wait on a full queue is not known."""
    found: Array = (steps["flags"] & int(SyncIntervalFlag.UNTIMED)) != 0
    return found


def _timed(steps: Array) -> Array:
    timed: Array = steps[~is_untimed(steps)]
    return timed


def blocked_share(steps: Array) -> float:
    """The share of time blocked in calls that waited for the GPU, 0 to 1; of steps with timed launches, if any."""
    timed = _timed(steps)
    steps = timed if len(timed) else steps
    return float(steps["busy_ns"].sum()) / max(float((steps["sync_end_ns"] - steps["prev_sync_end_ns"]).sum()), 1.0)


def paced_by_type(steps: Array) -> dict[int, PacedBy]:
    """What sets the pace by step type; for a type without an answer, what sets the pace of all steps."""
    found = {int(key): paced_by(steps[steps["step_type"] == key]) for key in np.unique(steps["step_type"])}
    of_all = paced_by(steps)
    return {key: of_all if pace is PacedBy.UNKNOWN else pace for key, pace in found.items()}


def is_refill(steps: Array, pace: Mapping[int, PacedBy]) -> Array:
    """A mask of GPU-paced steps that fill the launch queue, at the start or after a wait for the stream emptied it.

    They take as long as the host needs, until one of them has to wait for the GPU, so that they measure neither host
    nor GPU: they are as much too short as the step that waited was too long. If the GPU still sets the pace, the queue
    is full after _FULL_AFTER launches; a host that has become slower may never fill it.
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
    """The steps as the diagnosis judges them: where the GPU sets the pace, all of a step is GPU time.

    The host works ahead then, so that its own work costs nothing as long as it still has to wait. Where the host sets
    the pace, launches do not wait, whether their durations are known or not.

    pace: by step type. leads: a `Lead` for each step (`host_lead.HostLeads.of`), which outranks `pace` where launches
    have no durations. ahead_ns: the most that the host was ahead of the GPU; it bounds the wait of such a step.
    """
    if not len(steps):
        return steps
    result: Array = steps.copy()
    has_lead = is_untimed(steps) & (leads != Lead.NOT_KNOWN)
    gpu, host = (
        np.where(has_lead, leads == lead, np.isin(steps["step_type"], [key for key, by in pace.items() if by is paced]))
        for paced, lead in ((PacedBy.GPU, Lead.GPU), (PacedBy.HOST, Lead.HOST))
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


def with_blocked(steps: Array, chosen: Array, blocked_ns: Array) -> Array:
    """Whole steps; the chosen ones get the time that they were blocked for the GPU at most.

    chosen: a mask of steps without launch durations. blocked_ns: (chosen steps, STATES), ns. That time is no state of
    the host's own then, as where launches have durations: all of the step is GPU time, in which the host's own time
    costs nothing while a thread is blocked.
    """
    result: Array = steps.copy()
    result["launch_state_ns"][chosen] = (steps["idle_state_ns"] + steps["launch_state_ns"])[chosen] - blocked_ns
    result["idle_state_ns"][chosen] = 0
    result["flags"][chosen] &= ~int(SyncIntervalFlag.UNTIMED)
    result["first_launch_ns"][chosen] = steps["prev_sync_end_ns"][chosen]
    result["busy_ns"][chosen] += steps["idle_ns"][chosen]
    result["idle_ns"][chosen] = 0
    return result


def waited_ns(sync_intervals: Array) -> Array:
    """The wait for the GPU at the end of each sync interval, ns; of a step, all its known waits."""
    found: Array = np.where(
        is_step(sync_intervals),
        sync_intervals["busy_ns"],
        sync_intervals["sync_end_ns"] - sync_intervals["sync_start_ns"],
    )
    return found


def is_step(sync_intervals: Array) -> Array:
    """A mask of the intervals that are steps found by repetition."""
    found: Array = (sync_intervals["flags"] & int(SyncIntervalFlag.STEP)) != 0
    return found
