"""Lost time of a time range by part of the sync interval and state of the critical-path thread, for rules to claim."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingero.diagnose.findings import Bucket, Part
from ingero.diagnose.lost_time.best_regime import ClassReference
from ingero.diagnose.lost_time.end_to_end import host_paced_ns
from ingero.diagnose.steps.pacing import is_step, is_untimed
from ingero.diagnose.steps.queue_depth import was_queue_full
from ingero.diagnose.steps.untraced_launches import has_untraced_launches, host_growth_ns
from ingero.events import STATES

Array = np.ndarray[Any, np.dtype[Any]]

GPU_EXECUTION = "gpu_execution"
UNKNOWN = "unknown"
_NOT_RECORDED = -1
_WAIT_STATES = tuple(
    STATES.index(name) for name in ("runq", "throttled", "yielded", "io", "uninterruptible", "stopped")
)
_NEVER_FOR_GPU = ("stopped", "io")  # states in which no thread waits for a GPU
_MAY_BE_BLOCKED = np.array([STATES.index(name) for name in ("run", "sleep")])  # on a full queue, or the host's own work
_MIN_GPU_SHARE = 0.1  # of the growth of GPU busy time: if more is beyond what the host can cause, the GPU is slower too


def buckets(sync_intervals: Array, references: Mapping[int, ClassReference]) -> dict[Bucket, int]:
    """Lost time by bucket, ns, signed, of the sync intervals whose step type has a reference."""
    sums: dict[Bucket, float] = defaultdict(float)
    for key, best in references.items():
        mine = sync_intervals["step_type"] == key
        if not mine.any():
            continue
        members = sync_intervals[mine]  # a step type has intervals of one kind
        if is_step(members).all():
            _add_steps(sums, members, best)
            continue
        if has_untraced_launches(members).all():
            _add_untraced(sums, members, best)
        else:
            _add_idle(sums, members, best)
            _add_busy(sums, members, best)
        _add_return_delay(sums, members, best)
    return {bucket: round(ns) for bucket, ns in sums.items() if abs(ns) >= 1}


def _add_steps(sums: dict[Bucket, float], steps: Array, best: ClassReference) -> None:
    """Adds the lost time of steps by repetition: the host's by its thread states, the GPU's where the wait for it grew.

    Where the GPU sets the pace, the host works ahead: its longer work costs nothing as long as it still had to wait.
    In steps whose launches have no durations, the wait on a full queue is not known: there the host's part is only the
    time that was no such wait and was longer than the host can have been ahead.
    """
    is_gpu_paced = (steps["idle_ns"] == 0) & (steps["busy_ns"] > 0)
    untimed = is_untimed(steps)
    state_ns = steps["idle_state_ns"] + steps["launch_state_ns"]
    growth = state_ns - (best.idle_state_ns + best.launch_state_ns)
    growth[np.ix_(is_gpu_paced & untimed, _MAY_BE_BLOCKED)] = 0
    length = steps["sync_end_ns"] - steps["prev_sync_end_ns"]
    excess, longer = length - best.reference.t_ns, growth.sum(axis=1)
    hidden = np.where(is_gpu_paced, np.where(untimed, steps["busy_ns"], length - state_ns.sum(axis=1)), 0)
    most = float(np.clip(longer - hidden, 0, np.maximum(excess, 0)).sum())
    total = float(excess.sum())
    host = min(max(min(float(longer.sum()), most), 0.0), max(total, 0.0))
    growth[np.ix_(untimed, _MAY_BE_BLOCKED)] = 0
    grown = [
        (part, growth[chosen].sum(axis=0)) for part, chosen in ((Part.LAUNCH, is_gpu_paced), (Part.IDLE, ~is_gpu_paced))
    ]
    whole = sum(max(float(state_ns.sum()), 0.0) for _, state_ns in grown)
    for part, state_ns in grown:
        share = max(float(state_ns.sum()), 0.0) / whole if whole else float(part is Part.IDLE)
        spread(sums, part, host * share, state_ns, is_partial=True)
    sums[Bucket(Part.GPU, GPU_EXECUTION)] += total - host


def _add_idle(sums: dict[Bucket, float], sync_intervals: Array, best: ClassReference) -> None:
    total = float((sync_intervals["idle_ns"] - best.reference.idle_ns).sum())
    state_ns = sync_intervals["idle_state_ns"]
    known = state_ns[:, 0] != _NOT_RECORDED
    spread(sums, Part.IDLE, total, (state_ns[known] - best.idle_state_ns).sum(axis=0))


def _add_untraced(sums: dict[Bucket, float], sync_intervals: Array, best: ClassReference) -> None:
    """Adds the lost time of intervals with untraced launches.

    The host's part is divided by its thread states, as far as it made the interval longer; the rest is the GPU's.
    """
    host = float(host_growth_ns(sync_intervals, best.reference.idle_ns, best.reference.busy_ns).sum())
    total = float(
        (sync_intervals["idle_ns"] + sync_intervals["busy_ns"] - best.reference.idle_ns - best.reference.busy_ns).sum()
    )
    state_ns = sync_intervals["idle_state_ns"]
    known = state_ns[:, 0] != _NOT_RECORDED
    spread(sums, Part.IDLE, host, (state_ns[known] - best.idle_state_ns).sum(axis=0))
    kept = _kept_by_host(sums, sync_intervals, best, total - host)
    sums[Bucket(Part.GPU, GPU_EXECUTION)] += total - host - kept


def _add_busy(sums: dict[Bucket, float], sync_intervals: Array, best: ClassReference) -> None:
    """Adds the lost time of GPU busy: the host's part by the launching thread's states, the rest to the GPU."""
    expected_ns = best.reference.busy_ns
    excess = sync_intervals["busy_ns"] - expected_ns
    is_paced = ~was_queue_full(sync_intervals)  # else the launches waited for the GPU, not it for them
    paced_ns = host_paced_ns(sync_intervals, expected_ns) - expected_ns
    low = float(np.minimum(paced_ns, excess)[is_paced].sum())
    launching = np.where(
        is_paced,
        np.maximum(sync_intervals["sync_start_ns"] - sync_intervals["first_launch_ns"] - best.reference.launch_ns, 0),
        0,
    )
    high = float(np.minimum(launching, np.maximum(excess, 0)).sum())
    total = float(excess.sum())
    low = min(low, high)
    is_gpu_slower = total - high > _MIN_GPU_SHARE * max(total, 1)
    host = max(0.0, low if is_gpu_slower else max(low, min(high, total)))
    state_ns = sync_intervals["launch_state_ns"]
    known = state_ns[:, 0] != _NOT_RECORDED
    spread(sums, Part.LAUNCH, host, (state_ns[known] - best.launch_state_ns).sum(axis=0))
    kept = _kept_by_host(sums, sync_intervals, best, total - host)
    sums[Bucket(Part.GPU, GPU_EXECUTION)] += total - host - kept


def _kept_by_host(sums: dict[Bucket, float], sync_intervals: Array, best: ClassReference, most_ns: float) -> float:
    """Adds the part of a wait for the GPU that was another wait inside the call, at most most_ns, and returns its ns.

    A thread that is stopped in its call goes back to sleep when it continues; a thread in I/O wait reads the data that
    it copies. In both cases the GPU seems to be busy until then.
    """
    kept = 0.0
    for state in _NEVER_FOR_GPU:
        index = STATES.index(state)
        state_ns = sync_intervals["sync_state_ns"][:, index]
        grown = float(np.maximum(state_ns - best.sync_state_ns[index], 0)[state_ns > 0].sum())
        added = min(grown, max(most_ns - kept, 0.0))
        sums[Bucket(Part.RETURN_DELAY, state)] += added
        kept += added
    return kept


def _add_return_delay(sums: dict[Bucket, float], sync_intervals: Array, best: ClassReference) -> None:
    """Adds the lost time of the return delay, by the syncing thread's states that can delay a finished sync."""
    total = float((sync_intervals["return_delay_ns"] - best.reference.return_delay_ns).sum())
    state_ns = sync_intervals["sync_state_ns"]
    known = state_ns[:, 0] != _NOT_RECORDED
    grown = kept_waiting((state_ns[known] - best.sync_state_ns).sum(axis=0))
    spread(sums, Part.RETURN_DELAY, total, grown, is_partial=True)


def kept_waiting(state_ns: Array) -> Array:
    """The thread-state times of a sync, in the order of STATES, with 0 for states that cannot delay a finished sync."""
    kept = np.zeros(len(STATES))
    kept[list(_WAIT_STATES)] = state_ns[list(_WAIT_STATES)]
    return kept


def spread(sums: dict[Bucket, float], part: Part, total: float, grown: Array, *, is_partial: bool = False) -> None:
    """Divides `total` ns of a part among thread states by their growth; what they do not cover is unknown.

    Growth beyond the total is scaled down. is_partial: the states are of a longer time than the part, and bound it.
    """
    if total <= 0:
        sums[Bucket(part, UNKNOWN)] += total
        return
    positive = np.maximum(grown, 0)
    covered = float(positive.sum())
    if not is_partial:
        covered = max(covered, 1.0)
    scale = min(1.0, total / covered) if covered else 0.0
    for name, ns in zip(STATES, positive * scale, strict=True):
        if ns:
            sums[Bucket(part, name)] += float(ns)
    rest = total - covered * scale
    if abs(rest) >= 1:
        sums[Bucket(part, UNKNOWN)] += rest
