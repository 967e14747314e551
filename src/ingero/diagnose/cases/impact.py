"""The impact of a case: rate and lengths of the process's steps or sync intervals, beside the baseline's."""

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
    """The impact of a case; None where no interval of the main stream is left in its window."""
    gpu_stream = case.evidence.gpu_streams[case.process.process]
    now, baseline = _within(gpu_stream, [case.window]), _within(gpu_stream, case.baseline_windows)
    if not len(now):
        return None
    number = case.process.process
    totals = next((one for one in case.evidence.thread_state_totals(case.window) if one.process == number), None)
    return Impact(
        judged_by=case.evidence.main_streams[case.process.process].noun,
        per_s=_rate(now),
        baseline_per_s=_rate(baseline) if len(baseline) else None,
        p50_ns=_quantile(now, 0.5),
        baseline_p50_ns=_quantile(baseline, 0.5) if len(baseline) else None,
        p99_ns=_quantile(now, 0.99),
        baseline_p99_ns=_quantile(baseline, 0.99) if len(baseline) else None,
        involuntary_off_cpu_ratio=_involuntary(case.sync_intervals),
        baseline_involuntary_off_cpu_ratio=_baseline_involuntary(case),
        context_switches=totals.switches if totals else None,
        involuntary_context_switches=totals.involuntary_switches if totals else None,
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
    """The involuntary off-CPU share of the critical-path thread's time, 0 to 1."""
    state_ns = [np.maximum(sync_intervals[f"{part}_state_ns"][:, _INVOLUNTARY], 0) for part in _PARTS]
    return sum(int(ns.sum()) for ns in state_ns) / max(int(_lengths(sync_intervals).sum()), 1)


def _baseline_involuntary(case: Case) -> float | None:
    """The involuntary share of the baseline with the case's mix of step types, 0 to 1; None without a baseline."""
    if not case.baseline_windows:
        return None
    involuntary_ns = length_ns = 0.0
    for key, best in case.references.items():
        count = int((case.sync_intervals["step_type"] == key).sum())
        state_ns = (best.idle_state_ns, best.launch_state_ns, best.sync_state_ns)
        involuntary_ns += count * sum(float(ns[_INVOLUNTARY].sum()) for ns in state_ns)
        length_ns += count * best.reference.t_ns
    return involuntary_ns / length_ns if length_ns else None
