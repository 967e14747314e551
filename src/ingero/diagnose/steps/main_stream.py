"""Which streams of a process can be judged by their sync intervals, where other streams work beside them.

A synced copy stream beside a compute stream that nobody waits for is idle most of the time, whatever the GPU does: in
three of 27 recordings of real programs it was taken for the GPU, which was 83 and 96% busy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ingero.events import SyncIntervalFlag
from ingero.store.arrays.gpu_streams import GpuStream

Array = np.ndarray[Any, np.dtype[Any]]

MOST_CUT_SHORT = 0.5  # of a stream's intervals; a prefetched batch is in flight at the end of some


def judged_alone(gpu_streams: Iterable[GpuStream], launches_of: Callable[[int], float]) -> list[GpuStream]:
    """Without the streams that others cut short, while these launch more than they and are not waited for.

    streams: all that a window has. launches_of: all launches of a process in it; asked for streams that are cut short.
    """
    gpu_streams = list(gpu_streams)
    synced = Counter[int]()
    for gpu_stream in gpu_streams:
        synced[gpu_stream.process] += _launches(gpu_stream)

    def is_beside(gpu_stream: GpuStream) -> bool:
        return are_cut_short(gpu_stream.sync_intervals) and launches_of(gpu_stream.process) - synced[
            gpu_stream.process
        ] > _launches(gpu_stream)

    return [gpu_stream for gpu_stream in gpu_streams if not is_beside(gpu_stream)]


def are_cut_short(sync_intervals: Array) -> bool:
    """Whether at the end of most of these intervals other streams of the process had work that nobody waited for."""
    return (
        bool(len(sync_intervals))
        and float(np.mean((sync_intervals["flags"] & int(SyncIntervalFlag.PARTIAL)) != 0)) > MOST_CUT_SHORT
    )


def _launches(gpu_stream: GpuStream) -> int:
    return int(gpu_stream.sync_intervals["launches"].sum())
