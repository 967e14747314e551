"""How far the host is ahead of the GPU where launches are not traced: by the waits for the stream that there still are.

A thread that waits for a stream waits for all that is queued on it. For no longer than a step takes: nothing but the
step's own work was left, so that the host was not ahead and had set the pace since the wait before. For two steps and
more: the host was ahead, and what it did cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.steps.pacing import GPU_BOUND, HOST_BOUND, Lead, PacedBy, is_untimed
from ingero.events import SyncIntervalFlag
from ingero.store.arrays.gpu_streams import GpuStream

Array = np.ndarray[Any, np.dtype[Any]]

_OWN_WORK = 1.0  # usual steps: what a thread waits for the work of its own step, at most
_AHEAD = 2.0  # usual steps: in a wait as long there is a whole one that was launched ahead
_MOST = 0.9  # of the steps that waits tell something of, before one word is said of them all


@dataclass(frozen=True, slots=True)
class Leads:
    """Who set the pace between waits. ends: when they returned, in order of time; said: of the time before each.

    ahead_ns: the longest wait for what was launched ahead; without bound where there was none.
    """

    ends: Array
    said: Array
    ahead_ns: float

    def of(self, steps: Array) -> Array:
        """A `Lead` for each step of either kind, by its end; nothing is known behind the last wait."""
        turn = np.searchsorted(self.ends, steps["sync_end_ns"])
        found: Array = np.append(self.said, Lead.NOT_KNOWN)[turn]
        return found

    def pace(self, steps: Array) -> PacedBy:
        """Of all these steps in one word."""
        said = self.of(steps)
        host, gpu = int((said == Lead.HOST).sum()), int((said == Lead.GPU).sum())
        if 2 * (host + gpu) < len(steps):
            return PacedBy.UNKNOWN
        if max(host, gpu) < _MOST * (host + gpu):
            return PacedBy.MIXED
        return PacedBy.HOST if host > gpu else PacedBy.GPU


_NOTHING = Leads(np.zeros(0, np.int64), np.zeros(0, np.int64), np.inf)


def leads(steps: Array, waits: Array) -> Leads:
    """steps: of one process, any kind. waits: `awaited`, of either kind of array.

    Where steps wait themselves, as in the copy of each batch, each tells of itself. Else a wait tells of the steps
    since the one before; between one that says "host" and one that says "GPU" the host may have been either.
    """
    untimed = is_untimed(steps)
    if not untimed.any():
        return _NOTHING
    lengths = np.maximum(steps["sync_end_ns"] - steps["prev_sync_end_ns"], 1)
    usual_ns = float(np.median(lengths))
    is_each = float(np.median((steps["busy_ns"] / lengths)[untimed])) >= GPU_BOUND
    if not is_each and not len(waits):
        return _NOTHING
    waits = steps if is_each else waits[np.argsort(waits["sync_end_ns"], kind="stable")]
    waited_ns = steps["busy_ns"] if is_each else _waited_ns(waits)
    share = waited_ns / np.maximum(waits["sync_end_ns"] - waits["prev_sync_end_ns"], 1)
    is_host = (waited_ns <= _OWN_WORK * usual_ns) & (share <= HOST_BOUND)
    is_gpu = (waited_ns >= _AHEAD * usual_ns) | (share >= GPU_BOUND)
    was_gpu = is_each | np.append(True, is_gpu[:-1])
    said = np.where(is_host, Lead.HOST, np.where(is_gpu & was_gpu, Lead.GPU, Lead.NOT_KNOWN))
    ahead_ns = float(waited_ns.max()) if is_gpu.any() else np.inf
    return Leads(np.ascontiguousarray(waits["sync_end_ns"]), said, ahead_ns)


def awaited(gpu_streams: Iterable[GpuStream], process: int) -> Array:
    """The whole sync intervals of the stream of a process that its threads waited for longest, in all.

    Beside a stream that computes, one that only copies is waited for in each step, and hardly at all.
    """
    mine = [gpu_stream.sync_intervals for gpu_stream in gpu_streams if gpu_stream.process == process]
    longest = max(mine, key=lambda sync_intervals: int(_waited_ns(sync_intervals).sum()), default=None)
    if longest is None:
        return np.zeros(0)
    whole: Array = longest[(longest["flags"] & int(SyncIntervalFlag.PARTIAL)) == 0]
    return whole


def _waited_ns(waits: Array) -> Array:
    """From the entry of the sync until the GPU was ready."""
    found: Array = np.maximum(waits["gpu_done_ns"] - waits["sync_start_ns"], 0)
    return found
