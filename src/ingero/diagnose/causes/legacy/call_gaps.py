"""Gaps between GPU calls in recordings of Ingero 0.8 to 0.17, whose off-CPU records have no state.

A sleeping thread and a preempted one look the same in them, so that nothing is said about CPU contention. Findings rest
on two events of one process that follow each other too closely and too often to be chance.
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
class CallGaps:
    """Gaps between the GPU calls of a process, from its first call to its last."""

    span_ns: int
    idle_ns: int
    longest_ns: int
    count: int

    @property
    def ratio(self) -> float:
        """Share of the time without a GPU call (0-1)."""
        return self.idle_ns / max(self.span_ns, 1)


def gpu_gaps(evidence: Evidence, process: int, min_ns: int) -> CallGaps | None:
    """Gaps of at least min_ns between recorded GPU calls; None with fewer than two calls."""
    calls = evidence.events(evidence.window, GPU_SOURCES, process)
    if len(calls) < 2:
        return None
    ends = np.maximum.accumulate(calls["start_ns"] + calls["duration_ns"])
    pauses = calls["start_ns"][1:] - ends[:-1]
    long = pauses[pauses >= min_ns]
    return CallGaps(
        span_ns=int(ends[-1] - calls["start_ns"][0]),
        idle_ns=int(long.sum()),
        longest_ns=int(long.max(initial=0)),
        count=len(long),
    )


def ends_soon_after(intervals: Array, causes: Array, within_ns: int) -> Array:
    """Which off-CPU intervals end within `within_ns` after the end of one of the causes."""
    cause_end_ns = np.sort(causes["start_ns"] + causes["duration_ns"])
    end_ns = intervals["start_ns"] + intervals["duration_ns"]
    latest = np.searchsorted(cause_end_ns, end_ns, side="right") - 1
    soon: Array = (
        (latest >= 0) & (end_ns - cause_end_ns[np.maximum(latest, 0)] <= within_ns) if len(cause_end_ns) else end_ns < 0
    )
    return soon
