"""What recordings of Ingero 0.8 to 0.17 can still tell: by timing alone, because their off-CPU records have no state.

A thread that slept and one that was preempted look the same in them. So nothing is said about CPU contention, and what
is said rests on two events of one process that follow each other too closely and too often to be chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.ops import Source

Array = np.ndarray[Any, np.dtype[Any]]

GPU_SOURCES = (Source.CUDA, Source.DRIVER, Source.CUDA_GRAPH, Source.NCCL)
NO_STATE = "recordings of this version do not show whether a thread slept or was preempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The pauses between the GPU calls of a process, from its first call to its last."""

    whole_ns: int
    idle_ns: int
    longest_ns: int
    count: int

    @property
    def ratio(self) -> float:
        """Share of the time without a GPU call."""
        return self.idle_ns / max(self.whole_ns, 1)


def gpu_gaps(evidence: Evidence, process: int, least_ns: int) -> Gaps | None:
    """Pauses of at least least_ns between recorded GPU calls; None with fewer than two calls."""
    calls = evidence.events(evidence.window, GPU_SOURCES, process)
    if len(calls) < 2:
        return None
    ends = np.maximum.accumulate(calls["start_ns"] + calls["duration_ns"])
    pauses = calls["start_ns"][1:] - ends[:-1]
    long = pauses[pauses >= least_ns]
    return Gaps(
        whole_ns=int(ends[-1] - calls["start_ns"][0]),
        idle_ns=int(long.sum()),
        longest_ns=int(long.max(initial=0)),
        count=len(long),
    )


def ends_soon_after(intervals: Array, causes: Array, within_ns: int) -> Array:
    """Which intervals off the CPU end within so much time of the end of one of the causes."""
    done = np.sort(causes["start_ns"] + causes["duration_ns"])
    back = intervals["start_ns"] + intervals["duration_ns"]
    place = np.searchsorted(done, back, side="right") - 1
    soon: Array = (place >= 0) & (back - done[np.maximum(place, 0)] <= within_ns) if len(done) else back < 0
    return soon
