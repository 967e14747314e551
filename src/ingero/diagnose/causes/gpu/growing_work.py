"""Steps whose device time grew because each has more to do: longer sequences, a growing cache of keys and values.

A class holds steps of up to twice the bytes. Where the bytes grew with the time the work did; and a device that
becomes slower does so at once, or its driver says why, while work grows a little with each step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.findings import FindingKind

Array = np.ndarray[Any, np.dtype[Any]]

_MORE = 1.05  # times the bytes, before they say that the work grew
_POWER = 2  # of the bytes, that the time may grow with: attention looks at each pair of tokens
_SLACK = 0.03
_CHUNKS = 40
_LEAST_CHUNKS = 15  # fewer do not show how it grew
_LEAST_SYNC_INTERVALS = 5  # of a chunk
_BEFORE = 0.2  # of a case's length is looked at before it, to see how it began
_AT_ONCE = 0.15  # of the growth between two chunks: less is gradual


def has_more_to_do(case: Case) -> bool:
    """Whether the steps of a case took the GPU longer for work that grew."""
    if case.kind is not FindingKind.INCIDENT or case.resynced or not len(case.sync_intervals):
        return False
    keys, counts = np.unique(case.sync_intervals["step_type"], return_counts=True)
    key = int(keys[np.argmax(counts)])
    return key in case.usual and (_grew_with_bytes(case, key) or _grew_gradually(case, key))


def _grew_with_bytes(case: Case, key: int) -> bool:
    """Whether the bytes of a step grew enough for the time that the GPU took longer."""
    healthy = [case.evidence.sync_intervals(window, case.process.process) for window in case.baselines]
    before = np.concatenate([one[one["step_type"] == key] for one in healthy]) if healthy else case.sync_intervals[:0]
    now = case.sync_intervals[case.sync_intervals["step_type"] == key]
    if not len(before) or not before["bytes"].sum():
        return False
    more = float(now["bytes"].mean()) / float(before["bytes"].mean())
    longer = float(now["busy_ns"].mean()) / max(float(before["busy_ns"].mean()), 1.0)
    return more >= _MORE and longer <= more**_POWER + _SLACK


def _grew_gradually(case: Case, key: int) -> bool:
    """Whether the GPU took a little longer from step to step, and never much longer at once."""
    before_ns = round(_BEFORE * case.window.duration_ns)
    gpu_stream = case.evidence.gpu_streams[case.process.process]
    inside = (gpu_stream["sync_end_ns"] >= case.window.begin_ns - before_ns) & (
        gpu_stream["sync_end_ns"] <= case.window.end_ns
    )
    times = gpu_stream["busy_ns"][inside & (gpu_stream["step_type"] == key)].astype(np.float64)
    count = min(_CHUNKS, len(times) // _LEAST_SYNC_INTERVALS)
    if count < _LEAST_CHUNKS:
        return False
    middles = np.array([float(np.median(chunk)) for chunk in np.array_split(times, count)])
    growth = float(middles.max()) - case.usual[key].reference.busy_ns
    return growth > 0 and float(np.diff(middles).max()) < _AT_ONCE * growth
