"""Steal time: CPU time that the hypervisor gave to other guests in the seconds in which time was lost.

The kernel counts it per CPU, not per thread: a time slice seems longer, and a timer or an interrupt comes later, and so
does the end of a wait for the GPU. A thread runs on one CPU at a time, so it lost at most the steal time of the worst
CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.lost_time.uniform import uniform_gpu_excess_ns
from ingero.store.arrays.spans import Spans
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

_MIN_STEAL_RATIO = 0.02  # of a CPU: any virtual machine has this much
_MIN_RATIO_FOR_ALL_WAITS = 0.2  # of a CPU: this much may lengthen every wait


@dataclass(frozen=True, slots=True, kw_only=True)
class StealTime:
    """Steal time of the worst CPU in a case.

    ratio, baseline_ratio: of its time, while time was lost and in the baseline. baseline_ratio None: no second lies
    wholly in the baseline, which then counts as 0.
    share: of the lost time, at most. uniform_gpu_excess_ns: of the GPU's lost time, what steal cannot have caused.
    """

    ratio: float
    baseline_ratio: float | None
    share: float
    uniform_gpu_excess_ns: int


def measure_steal_time(case: Case) -> StealTime | None:
    """The steal time of a case; None where it is negligible."""
    begins, ends, ratios = _worst_cpu_by_second(case.evidence.cpu_seconds, case.window)
    if not ratios.any():
        return None
    lost = _lost_by_second(case, begins, ends)
    ratio = float(np.average(ratios, weights=lost)) if lost.sum() else 0.0
    if ratio < _MIN_STEAL_RATIO:
        return None
    baseline_ratio = _baseline_steal_ratio(case)
    stolen_ns = np.maximum(ratios - (baseline_ratio or 0.0), 0) * (ends - begins)
    uniform_ns = uniform_gpu_excess_ns(case) if ratio < _MIN_RATIO_FOR_ALL_WAITS else 0
    unexplained = lost * (1 - min(uniform_ns / max(case.lost_ns, 1), 1.0))
    return StealTime(
        ratio=ratio,
        baseline_ratio=baseline_ratio,
        share=float(np.minimum(unexplained, stolen_ns).sum() / lost.sum()),
        uniform_gpu_excess_ns=uniform_ns,
    )


def _worst_cpu_by_second(rows: Array, window: Window) -> tuple[Array, Array, Array]:
    """Start and end of each second that overlaps a window, and the steal ratio of its worst CPU."""
    begins = rows["time_ns"] - rows["elapsed_ns"]
    rows = rows[(begins < window.end_ns) & (rows["time_ns"] > window.begin_ns)]
    ends, first, second_of = np.unique(rows["time_ns"], return_index=True, return_inverse=True)
    worst = np.zeros(len(ends))
    np.maximum.at(worst, second_of, rows["steal_ns"] / np.maximum(rows["elapsed_ns"], 1))
    return ends - rows["elapsed_ns"][first], ends, worst


def _lost_by_second(case: Case, begins: Array, ends: Array) -> Array:
    """Lost time in each second, ns, from the ends of the sync intervals, scaled to the case if these are a sample."""
    cumulative = np.append(0, np.cumsum(np.maximum(case.excess_ns, 0)))
    edges = [np.searchsorted(case.sync_intervals["sync_end_ns"], times, side="right") for times in (begins, ends)]
    lost: Array = cumulative[edges[1]] - cumulative[edges[0]]
    return lost * max(case.lost_ns, 0) / max(float(cumulative[-1]), 1.0)


def _baseline_steal_ratio(case: Case) -> float | None:
    """Mean steal ratio of the worst CPU in the baseline, which may precede the diagnosed window; None if unknown."""
    if not case.baseline_windows:
        return None
    evidence = case.evidence
    span = Window(
        begin_ns=min(window.begin_ns for window in case.baseline_windows),
        end_ns=max(window.end_ns for window in case.baseline_windows),
    )
    is_in_memory = evidence.window.begin_ns <= span.begin_ns and span.end_ns <= evidence.window.end_ns
    rows = evidence.cpu_seconds if is_in_memory else evidence.reader.cpu_seconds(span)
    begins, ends, ratios = _worst_cpu_by_second(rows, span)
    inside = Spans(case.baseline_windows).hold(begins, ends)
    return float(ratios[inside].mean()) if inside.any() else None
