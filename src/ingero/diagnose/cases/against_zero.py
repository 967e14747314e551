"""Lost time against zero: how long a GPU waited for its host, and how much of that is proven."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.evidence.nvml_utilization import Utilization
from ingero.diagnose.findings import Bucket, Part
from ingero.diagnose.steps.pacing import HOST_BOUND, is_step, is_untimed
from ingero.diagnose.steps.queue_depth import was_queue_full
from ingero.diagnose.steps.untraced_launches import has_untraced_launches
from ingero.events import STATES

Array = np.ndarray[Any, np.dtype[Any]]

_MAX_WAIT_RATIO = 0.05  # of GPU busy time: with a shorter wait the GPU was done right after the last launch
_SLOWEST_LINK = 3.0  # bytes a ns: PCIe 3.0 x4, the slowest link that GPUs used for training are found on
_STATE_FIELDS = {Part.IDLE: "idle", Part.LAUNCH: "launch", Part.RETURN_DELAY: "sync"}


def host_lengths(sync_intervals: Array) -> dict[Part, Array]:
    """Per part, how long each interval's GPU waited for the host: GPU idle, return delay, and slow launches.

    The launch phase counts where the GPU was done right after the last launch. Takes sync intervals, whole or in short.
    """
    steps = is_step(sync_intervals)
    if steps.any():  # the host's normal work is no wait of the GPU; where the GPU sets the pace too, nothing is proven
        is_host_bound = (
            sync_intervals["busy_ns"]
            <= HOST_BOUND * (sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"])
        ) & ~is_untimed(sync_intervals)
        none = np.zeros(len(sync_intervals), np.int64)
        return {
            Part.IDLE: np.where(is_host_bound, sync_intervals["idle_ns"], 0),
            Part.LAUNCH: none,
            Part.RETURN_DELAY: none,
        }
    kept_waiting = (
        sync_intervals["gpu_done_ns"] - sync_intervals["sync_start_ns"] < _MAX_WAIT_RATIO * sync_intervals["busy_ns"]
    ) & ~was_queue_full(sync_intervals)
    return {
        Part.IDLE: sync_intervals["idle_ns"],
        Part.LAUNCH: np.where(kept_waiting, sync_intervals["sync_start_ns"] - sync_intervals["first_launch_ns"], 0),
        Part.RETURN_DELAY: sync_intervals["return_delay_ns"],
    }


def host_wait_buckets(sync_intervals: Array, own_run: float = 0.0) -> dict[Bucket, int]:
    """Lost time against zero by bucket: GPU idle, return delay, and slow launches (see `host_lengths`), ns.

    own_run: the share, 0 to 1, of the on-CPU time that was no launching, in intervals with untraced launches.
    """
    found: dict[Bucket, int] = {}
    for part, lengths in host_lengths(sync_intervals).items():
        state_ns = sync_intervals[f"{_STATE_FIELDS[part]}_state_ns"]
        counted = (state_ns[:, 0] >= 0) & (lengths > 0 if part is not Part.RETURN_DELAY else True)
        sums = state_ns[counted].sum(axis=0).astype(np.float64)
        if part is Part.RETURN_DELAY:
            sums[[STATES.index("run"), STATES.index("sleep")]] = 0  # of the whole sync: that is the wait for the GPU
        total = float(lengths.sum())
        if is_step(sync_intervals).any():
            sums[STATES.index("run")] = 0
            total = min(total, float(sums.sum()))
        scale = min(1.0, total / sums.sum()) if sums.sum() else 0.0
        shares = {Bucket(part, state): int(ns) for state, ns in zip(STATES, sums * scale, strict=True)}
        found |= shares | {Bucket(part, "unknown"): int(total - sum(shares.values()))}
        if part is Part.IDLE:
            found[Bucket(part, "run")] -= int(_launching_ns(sync_intervals, lengths) * scale * (1 - own_run))
    return {bucket: ns for bucket, ns in found.items() if ns > 0}


def _launching_ns(sync_intervals: Array, lengths: Array) -> int:
    """On-CPU time of intervals with untraced launches: the host may have been launching while the GPU was busy."""
    mine = has_untraced_launches(sync_intervals) & (lengths > 0)
    return int(np.maximum(sync_intervals["idle_state_ns"][mine, STATES.index("run")], 0).sum())


def run_while_idle_ns(sync_intervals: Array) -> int:
    """The on-CPU time of host-bound steps, ns: in it the GPU may have worked off what was launched before."""
    lengths = host_lengths(sync_intervals)[Part.IDLE]
    counted = is_step(sync_intervals) & (sync_intervals["idle_state_ns"][:, 0] >= 0) & (lengths > 0)
    return int(sync_intervals["idle_state_ns"][counted, STATES.index("run")].sum())


def idle_at_least_ns(wall_ns: int, used: Utilization | None, copied_bytes: float) -> float:
    """How long a GPU was idle for certain by NVML, which counts no kernel during a copy; 0.0 without NVML.

    copied_bytes: between GPU and host; taken to pass over the slowest link.
    """
    return max(wall_ns * (1 - used.share - used.error) - copied_bytes / _SLOWEST_LINK, 0.0) if used else 0.0


def capped_by_nvml(
    lost: dict[Bucket, int],
    wall_ns: int,
    used: Utilization | None,
    hidden: frozenset[Part] = frozenset({Part.LAUNCH}),
) -> dict[Bucket, int]:
    """This lost time with its hidden parts scaled down to the time in which NVML saw no kernel run.

    hidden: parts in which it is not known whether the GPU worked: between the launches of a slow host it may have done
    nothing or most of the work, and in a step by repetition it may have worked all the while. The limit is NVML's mean,
    without its error. On a GPU that several processes use, it is the time in which the GPU was idle for all of them.
    """
    hidden_ns = sum(ns for bucket, ns in lost.items() if bucket.part in hidden)
    if used is None or not hidden_ns:
        return lost
    idle_ns = wall_ns * (1 - used.share) - (sum(lost.values()) - hidden_ns)
    scale = min(max(idle_ns / hidden_ns, 0.0), 1.0)
    return {bucket: int(ns * scale) if bucket.part in hidden else ns for bucket, ns in lost.items()}


def proven_idle(lost: dict[Bucket, int], wall_ns: int, busy_ns: int, idle_ns: float) -> dict[Bucket, int]:
    """This lost time, where launches were not traced: only the host's part in which the GPU was idle for certain.

    The position of the launches in a sync interval is not known, so that the host may have waited while the GPU worked.
    The time without a kernel lies outside busy_ns, in which the host waited for the GPU in syncs. If it and the host's
    waits are together longer than the time outside, they overlap by the difference.

    idle_ns: of the GPU, at least (`idle_at_least_ns`).
    """
    waits_ns = sum(ns for bucket, ns in lost.items() if bucket.part is not Part.RETURN_DELAY)
    outside_ns = max(wall_ns - busy_ns, 0)
    scale = max(waits_ns + min(idle_ns, outside_ns) - outside_ns, 0.0) / max(waits_ns, 1)
    return {bucket: ns if bucket.part is Part.RETURN_DELAY else int(ns * scale) for bucket, ns in lost.items()}
