"""How far the host is ahead of the GPU where launches are not traced, by the remaining waits for the stream.

A thread that waits for a stream waits for all work queued on it. A wait no longer than a step means that only the
step's own work was left: the host was not ahead, and had set the pace since the wait before. A wait of two steps and
more means that the host was ahead, and that its own work cost nothing.
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

_MAX_OWN_WORK = 1.0  # median steps: the longest wait for the work of the step itself
_MIN_AHEAD = 2.0  # median steps: a wait this long holds an entire step that was launched ahead
_MIN_MAJORITY = 0.9  # of the steps whose pace is known, before all of them get one verdict


@dataclass(frozen=True, slots=True)
class HostLeads:
    """Whether the host or the GPU set the pace between waits for the stream.

    ends: when the waits returned, in order of time. leads: a `Lead` for the time before each of them. ahead_ns: the
    longest wait for work launched ahead; infinite without such a wait.
    """

    ends: Array
    leads: Array
    ahead_ns: float

    def of(self, steps: Array) -> Array:
        """A `Lead` for each step, whole or in short, by its end; NOT_KNOWN after the last wait."""
        turn = np.searchsorted(self.ends, steps["sync_end_ns"])
        found: Array = np.append(self.leads, Lead.NOT_KNOWN)[turn]
        return found

    def pace(self, steps: Array) -> PacedBy:
        """What sets the pace of these steps as a whole."""
        leads = self.of(steps)
        host, gpu = int((leads == Lead.HOST).sum()), int((leads == Lead.GPU).sum())
        if 2 * (host + gpu) < len(steps):
            return PacedBy.UNKNOWN
        if max(host, gpu) < _MIN_MAJORITY * (host + gpu):
            return PacedBy.MIXED
        return PacedBy.HOST if host > gpu else PacedBy.GPU


_NOTHING = HostLeads(np.zeros(0, np.int64), np.zeros(0, np.int64), np.inf)


def host_leads(steps: Array, waits: Array) -> HostLeads:
    """Who set the pace of the steps of a process, by its waits. waits: of `most_awaited_intervals`.

    Where each step waits (in the copy of its batch), that wait judges the step itself. Otherwise a wait judges the
    steps since the wait before; between a wait that proves the host and one that proves the GPU, either is possible.
    """
    untimed = is_untimed(steps)
    if not untimed.any():
        return _NOTHING
    lengths = np.maximum(steps["sync_end_ns"] - steps["prev_sync_end_ns"], 1)
    median_ns = float(np.median(lengths))
    is_each = float(np.median((steps["busy_ns"] / lengths)[untimed])) >= GPU_BOUND
    if not is_each and not len(waits):
        return _NOTHING
    waits = steps if is_each else waits[np.argsort(waits["sync_end_ns"], kind="stable")]
    waited_ns = steps["busy_ns"] if is_each else _waited_ns(waits)
    share = waited_ns / np.maximum(waits["sync_end_ns"] - waits["prev_sync_end_ns"], 1)
    is_host = (waited_ns <= _MAX_OWN_WORK * median_ns) & (share <= HOST_BOUND)
    is_gpu = (waited_ns >= _MIN_AHEAD * median_ns) | (share >= GPU_BOUND)
    was_gpu = is_each | np.append(True, is_gpu[:-1])
    leads = np.where(is_host, Lead.HOST, np.where(is_gpu & was_gpu, Lead.GPU, Lead.NOT_KNOWN))
    ahead_ns = float(waited_ns.max()) if is_gpu.any() else np.inf
    return HostLeads(np.ascontiguousarray(waits["sync_end_ns"]), leads, ahead_ns)


def most_awaited_intervals(gpu_streams: Iterable[GpuStream], process: int) -> Array:
    """The whole sync intervals of the stream that the threads of a process waited for longest in total.

    A stream that only copies, beside a stream that computes, may be waited for in each step, but hardly for any time.
    """
    mine = [gpu_stream.sync_intervals for gpu_stream in gpu_streams if gpu_stream.process == process]
    longest = max(mine, key=lambda sync_intervals: int(_waited_ns(sync_intervals).sum()), default=None)
    if longest is None:
        return np.zeros(0)
    whole: Array = longest[(longest["flags"] & int(SyncIntervalFlag.PARTIAL)) == 0]
    return whole


def _waited_ns(waits: Array) -> Array:
    """The wait of each interval, ns: from the start of the sync until the GPU was done."""
    found: Array = np.maximum(waits["gpu_done_ns"] - waits["sync_start_ns"], 0)
    return found
