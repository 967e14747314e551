"""Lost time of a time range by sync interval part and state of the critical-path thread: what rules have to explain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingero.diagnose.findings import Bucket, Part
from ingero.diagnose.lost_time.best_regime import Usual
from ingero.diagnose.lost_time.end_to_end import host_paced_ns
from ingero.diagnose.steps.pacing import is_step, is_untimed
from ingero.diagnose.steps.queue_depth import was_full
from ingero.diagnose.steps.untraced_launches import host_growth_ns, is_unseen
from ingero.events import STATES

Array = np.ndarray[Any, np.dtype[Any]]

DEVICE = "gpu_execution"
UNKNOWN = "unknown"
_NOT_RECORDED = -1
_WAITING = tuple(STATES.index(name) for name in ("runq", "throttled", "yielded", "io", "uninterruptible", "stopped"))
_NEVER_FOR_GPU = ("stopped", "io")  # states in which no thread waits for a GPU
_MAY_BE_BLOCKED = np.array([STATES.index(name) for name in ("run", "sleep")])  # on a full queue, or the host's own work
_MOSTLY_DEVICE = 0.1  # of the excess of GPU busy time beyond what the host can have caused: then the GPU is slower, too


def buckets(sync_intervals: Array, usual: Mapping[int, Usual]) -> dict[Bucket, int]:
    """Signed ns by bucket, of sync intervals whose class has a reference."""
    sums: dict[Bucket, float] = defaultdict(float)
    for key, one in usual.items():
        mine = sync_intervals["step_type"] == key
        if not mine.any():
            continue
        members = sync_intervals[mine]  # a class is of one kind
        if is_step(members).all():
            _steps(sums, members, one)
            continue
        if is_unseen(members).all():
            _host_and_wait(sums, members, one)
        else:
            _empty(sums, members, one)
            _busy(sums, members, one)
        _late(sums, members, one)
    return {bucket: round(ns) for bucket, ns in sums.items() if abs(ns) >= 1}


def _steps(sums: dict[Bucket, float], steps: Array, usual: Usual) -> None:
    """What steps by repetition lost: the host's by its clocks, the GPU's where the wait for it grew.

    Where the GPU paces, the host works ahead: what it took longer costs nothing as long as it still had to wait. How
    long it did on a full queue is not known of steps without times of launches: of these only what was no such wait and
    took longer than the host can have been ahead is the host's.
    """
    is_gpu_paced = (steps["idle_ns"] == 0) & (steps["busy_ns"] > 0)
    untimed = is_untimed(steps)
    clocks = steps["idle_state_ns"] + steps["launch_state_ns"]
    growth = clocks - (usual.idle_state_ns + usual.launch_state_ns)
    growth[np.ix_(is_gpu_paced & untimed, _MAY_BE_BLOCKED)] = 0
    length = steps["sync_end_ns"] - steps["prev_sync_end_ns"]
    excess, longer = length - usual.reference.t_ns, growth.sum(axis=1)
    hidden = np.where(is_gpu_paced, np.where(untimed, steps["busy_ns"], length - clocks.sum(axis=1)), 0)
    most = float(np.clip(longer - hidden, 0, np.maximum(excess, 0)).sum())
    total = float(excess.sum())
    host = min(max(min(float(longer.sum()), most), 0.0), max(total, 0.0))
    growth[np.ix_(untimed, _MAY_BE_BLOCKED)] = 0
    part = Part.LAUNCH if is_gpu_paced.all() else Part.IDLE
    spread(sums, part, host, growth.sum(axis=0), is_partial=True)
    sums[Bucket(Part.GPU, DEVICE)] += total - host


def _empty(sums: dict[Bucket, float], sync_intervals: Array, usual: Usual) -> None:
    total = float((sync_intervals["idle_ns"] - usual.reference.idle_ns).sum())
    clocks = sync_intervals["idle_state_ns"]
    known = clocks[:, 0] != _NOT_RECORDED
    spread(sums, Part.IDLE, total, (clocks[known] - usual.idle_state_ns).sum(axis=0))


def _host_and_wait(sums: dict[Bucket, float], sync_intervals: Array, usual: Usual) -> None:
    """The host's part by the clocks of its thread, as far as the interval grew by it; the rest to the GPU."""
    host = float(host_growth_ns(sync_intervals, usual.reference.idle_ns, usual.reference.busy_ns).sum())
    total = float(
        (
            sync_intervals["idle_ns"] + sync_intervals["busy_ns"] - usual.reference.idle_ns - usual.reference.busy_ns
        ).sum()
    )
    clocks = sync_intervals["idle_state_ns"]
    known = clocks[:, 0] != _NOT_RECORDED
    spread(sums, Part.IDLE, host, (clocks[known] - usual.idle_state_ns).sum(axis=0))
    kept = _kept_by_host(sums, sync_intervals, usual, total - host)
    sums[Bucket(Part.GPU, DEVICE)] += total - host - kept


def _busy(sums: dict[Bucket, float], sync_intervals: Array, usual: Usual) -> None:
    """The host's part by the clocks of the enqueuing thread, the rest to the GPU."""
    x = usual.reference.busy_ns
    excess = sync_intervals["busy_ns"] - x
    is_paced = ~was_full(sync_intervals)  # else the launches waited for the GPU, not it for them
    low = float(np.minimum(host_paced_ns(sync_intervals, x) - x, excess)[is_paced].sum())
    enqueuing = np.where(
        is_paced,
        np.maximum(sync_intervals["sync_start_ns"] - sync_intervals["first_launch_ns"] - usual.reference.launch_ns, 0),
        0,
    )
    high = float(np.minimum(enqueuing, np.maximum(excess, 0)).sum())
    total = float(excess.sum())
    low = min(low, high)
    is_device_slower = total - high > _MOSTLY_DEVICE * max(total, 1)
    host = max(0.0, low if is_device_slower else max(low, min(high, total)))
    clocks = sync_intervals["launch_state_ns"]
    known = clocks[:, 0] != _NOT_RECORDED
    spread(sums, Part.LAUNCH, host, (clocks[known] - usual.launch_state_ns).sum(axis=0))
    kept = _kept_by_host(sums, sync_intervals, usual, total - host)
    sums[Bucket(Part.GPU, DEVICE)] += total - host - kept


def _kept_by_host(sums: dict[Bucket, float], sync_intervals: Array, usual: Usual, most_ns: float) -> float:
    """What of a wait for the GPU, most_ns at most, was another wait inside the call; answers how much.

    A thread that is stopped in its call goes back to sleep when it continues; one that is in I/O wait reads what it
    copies. Either way the GPU seems to take until then.
    """
    kept = 0.0
    for state in _NEVER_FOR_GPU:
        index = STATES.index(state)
        clocks = sync_intervals["sync_state_ns"][:, index]
        grown = float(np.maximum(clocks - usual.sync_state_ns[index], 0)[clocks > 0].sum())
        taken = min(grown, max(most_ns - kept, 0.0))
        sums[Bucket(Part.RETURN_DELAY, state)] += taken
        kept += taken
    return kept


def _late(sums: dict[Bucket, float], sync_intervals: Array, usual: Usual) -> None:
    """By the clocks of the syncing thread that can keep a finished wait from returning."""
    total = float((sync_intervals["return_delay_ns"] - usual.reference.return_delay_ns).sum())
    clocks = sync_intervals["sync_state_ns"]
    known = clocks[:, 0] != _NOT_RECORDED
    grown = kept_waiting((clocks[known] - usual.sync_state_ns).sum(axis=0))
    spread(sums, Part.RETURN_DELAY, total, grown, is_partial=True)


def kept_waiting(state_ns: Array) -> Array:
    """Of the clocks of a sync, those that can keep a finished wait from returning."""
    kept = np.zeros(len(STATES))
    kept[list(_WAITING)] = state_ns[list(_WAITING)]
    return kept


def spread(sums: dict[Bucket, float], part: Part, total: float, grown: Array, *, is_partial: bool = False) -> None:
    """`total` over the clocks by their growth. What they do not cover is unknown; more than the total is scaled down.

    is_partial: the clocks are of a longer time than the part, so that they bound it.
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
