"""What a time range lost against a healthier one, end to end: signed, by class of sync interval, split by part.

Never the sum of slow calls: launches run ahead of the GPU, and a stall that run-ahead hides costs nothing. All
functions take the sync intervals of one stream (`store.arrays.SYNC_INTERVAL_DTYPE`); streams are never summed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MIN_SYNC_INTERVALS = 20  # fewer say nothing about what is usual
MAX_DEVICE_NOISE = 0.25  # MAD/median; above, the class does different work each time: no verdict about the GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What a sync interval of one class usually takes: t = idle + busy + return delay. In ns.

    t is the median; the three parts divide it as the middle half of the sync intervals (by length) divide theirs, so
    that they add up, which medians of each would not. launch_ns: median from the first launch to the sync. noise_ratio:
    MAD/median of t.
    """

    sync_intervals: int
    t_ns: float
    idle_ns: float
    busy_ns: float
    return_delay_ns: float
    launch_ns: float
    noise_ratio: float

    @property
    def can_judge_device(self) -> bool:
        """Whether the class repeats itself well enough for a verdict about the GPU."""
        return self.noise_ratio <= MAX_DEVICE_NOISE


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTime:
    """Time lost by sync intervals of known classes, ns: lost time = idle + busy + return delay. Negative: they caught
    up.

    host_low_ns and host_high_ns bound what of `busy_ns` the host alone would have caused (a counterfactual, so that a
    slower device may own the same time, too); what exceeds host_high_ns is the GPU's. noise_ns: what the lost time
    would be if each sync interval were off by the usual deviation of its class, in one direction. Sync intervals of
    classes without a reference count only as `unjudged`.
    """

    sync_intervals: int
    wall_ns: int
    idle_ns: int
    busy_ns: int
    return_delay_ns: int
    host_low_ns: int
    host_high_ns: int
    noise_ns: int
    unjudged: int
    unjudged_ns: int

    @property
    def lost_ns(self) -> int:
        """End to end."""
        return self.idle_ns + self.busy_ns + self.return_delay_ns


def references(baseline: Array, *, min_sync_intervals: int = MIN_SYNC_INTERVALS) -> dict[int, Reference]:
    """The usual sync interval of each class (by step_type) in a healthy time range; none for classes with too few."""
    found = {}
    for key in np.unique(baseline["step_type"]):
        members = baseline[baseline["step_type"] == key]
        if len(members) >= min_sync_intervals:
            found[int(key)] = _reference(members)
    return found


def lost_time(sync_intervals: Array, usual: Mapping[int, Reference]) -> LostTime:
    """What these sync intervals took beyond the usual ones of their classes."""
    judged = [(sync_intervals[sync_intervals["step_type"] == key], reference) for key, reference in usual.items()]
    sums = np.sum([_type_lost(members, reference) for members, reference in judged], axis=0) if judged else np.zeros(6)
    empty, busy, late, host_low, host_high, noise = (round(float(value)) for value in sums)
    is_known = np.isin(sync_intervals["step_type"], list(usual))
    lengths = sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]
    return LostTime(
        sync_intervals=int(is_known.sum()),
        wall_ns=int(lengths[is_known].sum()),
        idle_ns=empty,
        busy_ns=busy,
        return_delay_ns=late,
        host_low_ns=min(host_low, host_high),
        host_high_ns=host_high,
        noise_ns=noise,
        unjudged=int((~is_known).sum()),
        unjudged_ns=int(lengths[~is_known].sum()),
    )


def host_paced_ns(sync_intervals: Array, busy_ns: float) -> Array:
    """How long the GPU had been busy with the host's launches as they were and a device that needs `busy_ns` for them.

    At checkpoint j, j * step launches were made and the rest yet to come: a lower end, because a stop between two
    checkpoints is only seen at the later one.
    """
    first = sync_intervals["first_launch_ns"]
    paced = np.maximum(sync_intervals["sync_start_ns"] - first, busy_ns)
    launches = np.maximum(sync_intervals["launches"], 1)
    for j in range(sync_intervals["checkpoint_ns"].shape[1]):
        time = sync_intervals["checkpoint_ns"][:, j]
        to_come = np.clip(1 - j * sync_intervals["checkpoint_step"] / launches, 0, 1)
        paced = np.where(time > 0, np.maximum(paced, time - first + busy_ns * to_come), paced)
    result: Array = paced
    return result


def _reference(sync_intervals: Array) -> Reference:
    lengths = sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]
    t = float(np.median(lengths))
    low, high = np.quantile(lengths, (0.25, 0.75))
    middle = sync_intervals[(lengths >= low) & (lengths <= high)]
    parts = np.array([middle[name].sum(dtype=np.float64) for name in ("idle_ns", "busy_ns", "return_delay_ns")])
    e, x, p = t * parts / max(parts.sum(), 1)
    return Reference(
        sync_intervals=len(sync_intervals),
        t_ns=t,
        idle_ns=float(e),
        busy_ns=float(x),
        return_delay_ns=float(p),
        launch_ns=float(np.median(sync_intervals["sync_start_ns"] - sync_intervals["first_launch_ns"])),
        noise_ratio=float(np.median(np.abs(lengths - t))) / max(t, 1),
    )


def _type_lost(sync_intervals: Array, usual: Reference) -> tuple[float, float, float, float, float, float]:
    busy = sync_intervals["busy_ns"] - usual.busy_ns
    replayed = np.minimum(host_paced_ns(sync_intervals, usual.busy_ns) - usual.busy_ns, busy)
    enqueue_excess = np.maximum(
        sync_intervals["sync_start_ns"] - sync_intervals["first_launch_ns"] - usual.launch_ns, 0
    )
    return (
        float((sync_intervals["idle_ns"] - usual.idle_ns).sum()),
        float(busy.sum()),
        float((sync_intervals["return_delay_ns"] - usual.return_delay_ns).sum()),
        float(replayed.sum()),
        float(np.minimum(enqueue_excess, np.maximum(busy, 0)).sum()),
        len(sync_intervals) * usual.noise_ratio * usual.t_ns,
    )
