"""The streams of a process that can be judged by their sync intervals, beside other streams with work.

A synced copy stream beside a compute stream without syncs is idle most of the time, whatever the GPU does: in three of
27 recordings of real programs the copy stream was taken for the GPU, which was 83 and 96% busy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ingero.events import SyncIntervalFlag
from ingero.store.arrays.gpu_streams import GpuStream

Array = np.ndarray[Any, np.dtype[Any]]

MAX_CUT_SHORT = 0.5  # of a stream's intervals; a prefetched batch is in flight at the end of some


def judged_alone(gpu_streams: Iterable[GpuStream], launches_of: Callable[[int], float]) -> list[GpuStream]:
    """The streams that can be judged: without those cut short by streams that launch more and are never synced.

    gpu_streams: all streams of a window. launches_of: all launches of a process in the window, synced or not.
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
    """Whether at the end of most intervals other streams of the process had work that was not waited for."""
    return (
        bool(len(sync_intervals))
        and float(np.mean((sync_intervals["flags"] & int(SyncIntervalFlag.PARTIAL)) != 0)) > MAX_CUT_SHORT
    )


def _launches(gpu_stream: GpuStream) -> int:
    return int(gpu_stream.sync_intervals["launches"].sum())
