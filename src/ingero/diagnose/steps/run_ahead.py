"""Steps that repay each other: in a loop that runs ahead, what they lose the step that waits for the GPU gets back.

A loop that looks at its loss once in so many steps launches those in between without a wait, and waits in the one that
looks for all that is still queued. A host that takes longer in the steps between makes that wait shorter, and a slower
GPU makes nothing else longer. So none of these steps says what the loop needs: only the turn does, as far back as the
launch queue reaches. Such steps are judged as one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.lost_time.end_to_end import MIN_SYNC_INTERVALS

Array = np.ndarray[Any, np.dtype[Any]]

QUEUE_DEPTH = 1022  # launches: nothing runs ahead further
_SYNCS_A_STEP = 0.5  # where more of the steps wait, each of them repays itself
_WAITS_AS_LONG = 1.0  # as a usual step takes, in a tenth of the steps that wait: else they wait for their own work only
_APART_NS = 1_000_000  # between two steps something was not seen
_SUMS = ("idle_ns", "busy_ns", "return_delay_ns", "launches", "bytes", "idle_sleep_ns", "syncs")
_CLOCKS = ("idle_state_ns", "launch_state_ns", "sync_state_ns")
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))  # odd, so that each keeps all bits


def joined(steps: Array) -> Array:
    """Steps in short (`arrays.GPU_STREAM_DTYPE`, one process's) with each that waits joined to those that it repays.

    Turns that come too seldom for a reference are left as they are.
    """
    if not _runs_ahead(steps):
        return steps
    lasts = np.flatnonzero(steps["syncs"] > 0)
    firsts = _first_repaid(steps, lasts)
    keys = _class_keys(steps, firsts, lasts)
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


def joined_like(steps: Array, short: Array) -> Array:
    """The same of whole steps (`arrays.SYNC_INTERVAL_DTYPE`). short: what becomes of them; each has all its steps."""
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
    """Whether a few of the steps wait for the work of others, and it is known how many launches each has."""
    is_sync = steps["syncs"] > 0
    if not is_sync.any() or is_sync.mean() >= _SYNCS_A_STEP or not (steps["launches"] > 0).all():
        return False
    usual_ns = float(np.median(steps["sync_end_ns"] - steps["prev_sync_end_ns"]))
    return float(np.quantile(steps["busy_ns"][is_sync], 0.9)) >= _WAITS_AS_LONG * usual_ns


def _first_repaid(steps: Array, lasts: Array) -> Array:
    """The first step of each that waits: behind the wait before, a gap, and what the queue has room for."""
    launched = np.append(0, np.cumsum(steps["launches"]))
    of_queue = np.searchsorted(launched, launched[lasts + 1] - QUEUE_DEPTH)
    after_gap = np.zeros(len(steps), np.int64)
    gaps = np.flatnonzero(steps["prev_sync_end_ns"][1:] - steps["sync_end_ns"][:-1] > _APART_NS) + 1
    after_gap[gaps] = gaps
    after_gap = np.maximum.accumulate(after_gap)[lasts]
    after_sync = np.append(0, lasts[:-1] + 1)
    firsts: Array = np.minimum(np.maximum(np.maximum(of_queue, after_gap), after_sync), lasts)
    return firsts


def _class_keys(steps: Array, firsts: Array, lasts: Array) -> Array:
    """Negative, as no step has it: equal for turns of equal steps, in any window."""
    mixed = steps["step_type"].astype(np.uint64) * _MIX[0]
    mixed = (mixed ^ mixed >> np.uint64(29)) * _MIX[1]
    sums = np.append(np.uint64(0), np.cumsum(mixed))  # wraps around, which is as good
    keys: Array = -((sums[lasts + 1] - sums[firsts]) >> np.uint64(2)).astype(np.int64) - 1
    return keys


def _summed(steps: Array, begins: Array) -> Array:
    """One for each run of steps that begins at these indexes, the last of which says what is no sum."""
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
