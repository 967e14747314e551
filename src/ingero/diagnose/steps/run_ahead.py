"""Merging of steps that repay each other: where a loop runs ahead, the step that syncs makes up for the steps before.

A loop that reads its loss once in N steps launches the steps in between without a wait, and the step that reads the
loss waits for all queued work. If the host takes longer in the steps between, that wait becomes shorter, and a slower
GPU makes only that wait longer. So no step alone shows what the loop needs: only all steps of a turn do, as far back
as the launch queue reaches. They are merged and judged as one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.lost_time.end_to_end import MIN_SYNC_INTERVALS

Array = np.ndarray[Any, np.dtype[Any]]

QUEUE_DEPTH = 1022  # launches that fit into the queue: no host runs ahead further
_MAX_SYNC_SHARE = 0.5  # of the steps sync; where more do, each step repays itself
# Median steps that the longest tenth of waits take; with less, steps wait for their own work only.
_MIN_WAIT_STEPS = 1.0
_MAX_GAP_NS = 1_000_000  # between two steps; in a longer gap something was not traced
_SUMS = ("idle_ns", "busy_ns", "return_delay_ns", "launches", "bytes", "idle_sleep_ns", "syncs")
_CLOCKS = ("idle_state_ns", "launch_state_ns", "sync_state_ns")
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))  # odd, so that each keeps all bits


def merge_repaid_steps(steps: Array) -> Array:
    """The steps of one process in short (`arrays.GPU_STREAM_DTYPE`), each that syncs merged with those that it repays.

    Merged steps too rare for a reference are left as single steps.
    """
    if not _runs_ahead(steps):
        return steps
    lasts = np.flatnonzero(steps["syncs"] > 0)
    firsts = _first_repaid(steps, lasts)
    keys = _merged_types(steps, firsts, lasts)
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    chosen = (lasts > firsts) & (counts[inverse] >= MIN_SYNC_INTERVALS)
    firsts, lasts, keys = firsts[chosen], lasts[chosen], keys[chosen]
    is_inside = np.zeros(len(steps) + 1, np.int64)
    is_inside[firsts + 1] += 1
    is_inside[lasts + 1] -= 1
    begins = np.flatnonzero(np.cumsum(is_inside)[:-1] == 0)
    result = _summed(steps, begins)
    at = np.searchsorted(begins, firsts)
    result["step_type"][at], result["joined"][at] = keys, lasts - firsts
    return result


def merge_whole_steps(steps: Array, short: Array) -> Array:
    """Whole steps (`arrays.SYNC_INTERVAL_DTYPE`) merged as in `short`; each row of `short` has all its steps here."""
    at = np.searchsorted(short["sync_end_ns"], steps["sync_end_ns"])
    is_known = at < len(short)
    is_known[is_known] = steps["prev_sync_end_ns"][is_known] >= short["prev_sync_end_ns"][at[is_known]]
    steps, at = steps[is_known], at[is_known]
    if not len(steps):
        return steps
    begins = np.flatnonzero(np.diff(at, prepend=-1))
    result = _summed(steps, begins)
    result["step_type"] = short["step_type"][at[begins]]
    return result


def _runs_ahead(steps: Array) -> bool:
    """Whether a few of the steps wait for the work of others, and the number of launches of each step is known."""
    is_sync = steps["syncs"] > 0
    if not is_sync.any() or is_sync.mean() >= _MAX_SYNC_SHARE or not (steps["launches"] > 0).all():
        return False
    median_ns = float(np.median(steps["sync_end_ns"] - steps["prev_sync_end_ns"]))
    return float(np.quantile(steps["busy_ns"][is_sync], 0.9)) >= _MIN_WAIT_STEPS * median_ns


def _first_repaid(steps: Array, lasts: Array) -> Array:
    """For each step that syncs, the first step that it repays: after the sync before, after a gap, within the queue."""
    launched = np.append(0, np.cumsum(steps["launches"]))
    of_queue = np.searchsorted(launched, launched[lasts + 1] - QUEUE_DEPTH)
    after_gap = np.zeros(len(steps), np.int64)
    gaps = np.flatnonzero(steps["prev_sync_end_ns"][1:] - steps["sync_end_ns"][:-1] > _MAX_GAP_NS) + 1
    after_gap[gaps] = gaps
    after_gap = np.maximum.accumulate(after_gap)[lasts]
    after_sync = np.append(0, lasts[:-1] + 1)
    firsts: Array = np.minimum(np.maximum(np.maximum(of_queue, after_gap), after_sync), lasts)
    return firsts


def _merged_types(steps: Array, firsts: Array, lasts: Array) -> Array:
    """Step types of merged steps: equal for equal sequences of steps in any window; negative, unlike those of steps."""
    mixed = steps["step_type"].astype(np.uint64) * _MIX[0]
    mixed = (mixed ^ mixed >> np.uint64(29)) * _MIX[1]
    sums = np.append(np.uint64(0), np.cumsum(mixed))  # wraps around, which does no harm
    keys: Array = -((sums[lasts + 1] - sums[firsts]) >> np.uint64(2)).astype(np.int64) - 1
    return keys


def _summed(steps: Array, begins: Array) -> Array:
    """One row for each run of steps that begins at these indexes; fields that are not sums come from its last step."""
    ends = np.append(begins[1:], len(steps))
    result: Array = steps[ends - 1]
    result["prev_sync_end_ns"], result["prev_sync_tid"] = (
        steps["prev_sync_end_ns"][begins],
        steps["prev_sync_tid"][begins],
    )
    result["flags"] = np.bitwise_or.reduceat(steps["flags"], begins)
    for name in (*_SUMS, *_CLOCKS):
        if name in (steps.dtype.names or ()):
            result[name] = np.add.reduceat(steps[name], begins)
    return result
