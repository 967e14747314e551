"""Steps that take the GPU longer because each has more work: longer sequences, a growing KV cache.

A step type holds steps of up to twice the bytes. Where the bytes grew with the time, the work did. And a GPU that
becomes slower does so at once, or its driver says why, while work grows a little with each step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.findings import FindingKind

Array = np.ndarray[Any, np.dtype[Any]]

_MIN_BYTES_GROWTH = 1.05  # times the bytes, before the work counts as grown
_MAX_TIME_EXPONENT = 2  # of the bytes: attention is quadratic in the number of tokens
_SLACK = 0.03  # of the baseline's GPU time, beyond what the bytes explain
_MAX_CHUNKS = 40  # parts of a case whose medians are compared
_MIN_CHUNKS = 15  # fewer do not show how it grew
_MIN_INTERVALS_PER_CHUNK = 5  # of a chunk
_LEAD_IN_RATIO = 0.2  # of a case's length, read before it, to see how it began
_MAX_GROWTH_PER_CHUNK = 0.15  # of the whole growth; less from chunk to chunk is gradual


def has_growing_work(case: Case) -> bool:
    """Whether the steps of a case took the GPU longer because their work grew."""
    if case.kind is not FindingKind.INCIDENT or case.resync or not len(case.sync_intervals):
        return False
    step_types, counts = np.unique(case.sync_intervals["step_type"], return_counts=True)
    step_type = int(step_types[np.argmax(counts)])
    return step_type in case.references and (_grew_with_bytes(case, step_type) or _grew_gradually(case, step_type))


def _grew_with_bytes(case: Case, step_type: int) -> bool:
    """Whether the bytes of a step grew enough to explain the longer GPU time."""
    healthy = [case.evidence.sync_intervals(window, case.process.process) for window in case.baseline_windows]
    before = (
        np.concatenate([rows[rows["step_type"] == step_type] for rows in healthy])
        if healthy
        else case.sync_intervals[:0]
    )
    now = case.sync_intervals[case.sync_intervals["step_type"] == step_type]
    if not len(before) or not before["bytes"].sum():
        return False
    bytes_ratio = float(now["bytes"].mean()) / float(before["bytes"].mean())
    time_ratio = float(now["busy_ns"].mean()) / max(float(before["busy_ns"].mean()), 1.0)
    return bytes_ratio >= _MIN_BYTES_GROWTH and time_ratio <= bytes_ratio**_MAX_TIME_EXPONENT + _SLACK


def _grew_gradually(case: Case, step_type: int) -> bool:
    """Whether GPU time grew a little from step to step, and never much at once."""
    before_ns = round(_LEAD_IN_RATIO * case.window.duration_ns)
    gpu_stream = case.evidence.gpu_streams[case.process.process]
    inside = (gpu_stream["sync_end_ns"] >= case.window.begin_ns - before_ns) & (
        gpu_stream["sync_end_ns"] <= case.window.end_ns
    )
    times = gpu_stream["busy_ns"][inside & (gpu_stream["step_type"] == step_type)].astype(np.float64)
    count = min(_MAX_CHUNKS, len(times) // _MIN_INTERVALS_PER_CHUNK)
    if count < _MIN_CHUNKS:
        return False
    middles = np.array([float(np.median(chunk)) for chunk in np.array_split(times, count)])
    growth = float(middles.max()) - case.references[step_type].reference.busy_ns
    return growth > 0 and float(np.diff(middles).max()) < _MAX_GROWTH_PER_CHUNK * growth
