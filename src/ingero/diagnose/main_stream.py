"""Which streams of a process can be judged by their sync intervals, where other streams work beside them.

A synced copy stream beside a compute stream that nobody waits for is idle most of the time, whatever the GPU does: in
three of 27 recordings of real programs it was taken for the GPU, which was 83 and 96% busy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ingero.events import EpochFlag
from ingero.store.lanes import Lane

Array = np.ndarray[Any, np.dtype[Any]]

MOST_CUT_SHORT = 0.5  # of a stream's intervals; a prefetched batch is in flight at the end of some


def judged_alone(lanes: Iterable[Lane], launches_of: Callable[[int], float]) -> list[Lane]:
    """Without the streams that others cut short, while these launch more than they and are not waited for.

    lanes: all that a window has. launches_of: all launches of a process in it; asked for streams that are cut short.
    """
    lanes = list(lanes)
    synced = Counter[int]()
    for lane in lanes:
        synced[lane.process] += _launches(lane)

    def is_beside(lane: Lane) -> bool:
        return are_cut_short(lane.epochs) and launches_of(lane.process) - synced[lane.process] > _launches(lane)

    return [lane for lane in lanes if not is_beside(lane)]


def are_cut_short(epochs: Array) -> bool:
    """Whether at the end of most of these intervals other streams of the process had work that nobody waited for."""
    return bool(len(epochs)) and float(np.mean((epochs["flags"] & int(EpochFlag.PARTIAL)) != 0)) > MOST_CUT_SHORT


def _launches(lane: Lane) -> int:
    return int(lane.epochs["launches"].sum())
