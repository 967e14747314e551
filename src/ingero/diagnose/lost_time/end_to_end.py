"""Lost time of a time range against a healthier one, end to end: signed, by step type, divided by part.

Never the sum of slow calls: launches run ahead of the GPU, and a stall that run-ahead hides costs nothing. All
functions take the sync intervals of one stream (`store.arrays.SYNC_INTERVAL_DTYPE`); streams are never summed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MIN_SYNC_INTERVALS = 20  # of a step type, before they make a reference
MAX_GPU_NOISE = 0.25  # MAD/median; above, the step type does different work each time: no verdict about the GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The healthy length of a sync interval of one step type, ns: t = idle + busy + return delay.

    By `references`, t is the median, and the three parts divide it as the middle half of the sync intervals (by length)
    divide theirs, so that they add up, which medians of each part would not. launch_ns: median from the first launch
    to the sync. noise_ratio: MAD/median of t.
    """

    sync_intervals: int
    t_ns: float
    idle_ns: float
    busy_ns: float
    return_delay_ns: float
    launch_ns: float
    noise_ratio: float

    @property
    def can_judge_gpu(self) -> bool:
        """Whether the step type is steady enough for a verdict about the GPU."""
        return self.noise_ratio <= MAX_GPU_NOISE


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTime:
    """Time lost by sync intervals of step types with a reference, ns: idle + busy + return delay; negative: caught up.

    host_low_ns and host_high_ns bound the part of `busy_ns` that the host alone would have caused (a counterfactual: a
    slower GPU may have caused the same time); what exceeds host_high_ns is the GPU's. noise_ns: the lost time if each
    sync interval were longer by the normal deviation of its step type. Sync intervals of step types without a reference
    count only as `unjudged`.
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
        """Lost time end to end, ns."""
        return self.idle_ns + self.busy_ns + self.return_delay_ns


def references(baseline: Array, *, min_sync_intervals: int = MIN_SYNC_INTERVALS) -> dict[int, Reference]:
    """The reference of each step type in a healthy time range; none for types with too few sync intervals."""
    found = {}
    for key in np.unique(baseline["step_type"]):
        members = baseline[baseline["step_type"] == key]
        if len(members) >= min_sync_intervals:
            found[int(key)] = _reference(members)
    return found


def lost_time(sync_intervals: Array, reference_of: Mapping[int, Reference]) -> LostTime:
    """The time of these sync intervals beyond the references of their step types."""
    judged = [
        (sync_intervals[sync_intervals["step_type"] == key], reference) for key, reference in reference_of.items()
    ]
    sums = np.sum([_type_lost(members, reference) for members, reference in judged], axis=0) if judged else np.zeros(6)
    idle, busy, return_delay, host_low, host_high, noise = (round(float(value)) for value in sums)
    is_known = np.isin(sync_intervals["step_type"], list(reference_of))
    lengths = sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]
    return LostTime(
        sync_intervals=int(is_known.sum()),
        wall_ns=int(lengths[is_known].sum()),
        idle_ns=idle,
        busy_ns=busy,
        return_delay_ns=return_delay,
        host_low_ns=min(host_low, host_high),
        host_high_ns=host_high,
        noise_ns=noise,
        unjudged=int((~is_known).sum()),
        unjudged_ns=int(lengths[~is_known].sum()),
    )


def host_paced_ns(sync_intervals: Array, busy_ns: float) -> Array:
    """How long the GPU would have been busy with these launches if it needed `busy_ns` for them.

    At checkpoint j, j * step launches were made and the rest yet to come. This is a lower bound, because a stop between
    two checkpoints is only seen at the later one.
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
    idle, busy, return_delay = t * parts / max(parts.sum(), 1)
    return Reference(
        sync_intervals=len(sync_intervals),
        t_ns=t,
        idle_ns=float(idle),
        busy_ns=float(busy),
        return_delay_ns=float(return_delay),
        launch_ns=float(np.median(sync_intervals["sync_start_ns"] - sync_intervals["first_launch_ns"])),
        noise_ratio=float(np.median(np.abs(lengths - t))) / max(t, 1),
    )


def _type_lost(sync_intervals: Array, reference: Reference) -> tuple[float, float, float, float, float, float]:
    busy = sync_intervals["busy_ns"] - reference.busy_ns
    replayed = np.minimum(host_paced_ns(sync_intervals, reference.busy_ns) - reference.busy_ns, busy)
    launch_excess = np.maximum(
        sync_intervals["sync_start_ns"] - sync_intervals["first_launch_ns"] - reference.launch_ns, 0
    )
    return (
        float((sync_intervals["idle_ns"] - reference.idle_ns).sum()),
        float(busy.sum()),
        float((sync_intervals["return_delay_ns"] - reference.return_delay_ns).sum()),
        float(replayed.sum()),
        float(np.minimum(launch_excess, np.maximum(busy, 0)).sum()),
        len(sync_intervals) * reference.noise_ratio * reference.t_ns,
    )
