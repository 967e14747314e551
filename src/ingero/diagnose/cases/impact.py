"""What an affected process noticed of a case: its steps or sync intervals per second and their lengths, and before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.findings import Impact
from ingero.events import STATES
from ingero.store.arrays.spans import Spans
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

_INVOLUNTARY = [STATES.index(name) for name in ("runq", "throttled", "yielded")]
_PARTS = ("idle", "launch", "sync")


def impact_of(case: Case) -> Impact | None:
    """None where no interval of the main stream is left in the case's window."""
    gpu_stream = case.evidence.gpu_streams[case.process.process]
    now, usual = _within(gpu_stream, [case.window]), _within(gpu_stream, case.baselines)
    if not len(now):
        return None
    clocks = [one for one in case.evidence.thread_state_totals(case.window) if one.process == case.process.process]
    return Impact(
        judged_by=case.evidence.main_streams[case.process.process].noun,
        per_s=_rate(now),
        baseline_per_s=_rate(usual) if len(usual) else None,
        p50_ns=_quantile(now, 0.5),
        baseline_p50_ns=_quantile(usual, 0.5) if len(usual) else None,
        p99_ns=_quantile(now, 0.99),
        baseline_p99_ns=_quantile(usual, 0.99) if len(usual) else None,
        involuntary_off_cpu_ratio=_involuntary(case.sync_intervals),
        baseline_involuntary_off_cpu_ratio=_usual_involuntary(case),
        context_switches=clocks[0].switches if clocks else None,
        involuntary_context_switches=clocks[0].involuntary_switches if clocks else None,
    )


def _within(gpu_stream: Array, windows: Sequence[Window]) -> Array:
    mine: Array = gpu_stream[Spans(windows).have_inside(gpu_stream["sync_end_ns"])]
    return mine


def _lengths(sync_intervals: Array) -> Array:
    lengths: Array = sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]
    return lengths


def _rate(sync_intervals: Array) -> float:
    return (
        (len(sync_intervals) + int(sync_intervals["joined"].sum())) * 1e9 / max(int(_lengths(sync_intervals).sum()), 1)
    )


def _quantile(sync_intervals: Array, at: float) -> int:
    return int(np.quantile(_lengths(sync_intervals), at))


def _involuntary(sync_intervals: Array) -> float:
    """Of the time of the critical-path thread."""
    spent = sum(int(np.maximum(sync_intervals[f"{part}_state_ns"][:, _INVOLUNTARY], 0).sum()) for part in _PARTS)
    return spent / max(int(_lengths(sync_intervals).sum()), 1)


def _usual_involuntary(case: Case) -> float | None:
    """By the mean thread-state times of the baselines of the step types seen, each as often as it was seen."""
    if not case.baselines:
        return None
    spent = length = 0.0
    for key, usual in case.usual.items():
        count = int((case.sync_intervals["step_type"] == key).sum())
        clocks = (usual.idle_state_ns, usual.launch_state_ns, usual.sync_state_ns)
        spent += count * sum(float(one[_INVOLUNTARY].sum()) for one in clocks)
        length += count * usual.reference.t_ns
    return spent / length if length else None
