"""CPU time that the hypervisor gave to others, as far as time was lost in the seconds in which it did.

The kernel counts it by CPU, and tells no thread: a slice seems longer, a timer or an interrupt comes later, and with it
the end of a wait for the GPU. A thread is on one CPU at a time: it lost at most what was stolen of the worst one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.lost_time.uniform import alike_ns
from ingero.store.arrays.spans import Spans
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

_NONE = 0.02  # of a CPU: as much is stolen of any virtual machine
_OF_ALL = 0.2  # of a CPU: as much may make every wait longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Stolen:
    """ratio, usual_ratio: of the worst CPU while time was lost, and in the reference. share: of the lost time, at most.

    usual_ratio None: no second lies wholly in the reference, which may be the moments without; then it counts as 0.
    alike_ns: of the GPU's lost time, what it cannot have made.
    """

    ratio: float
    usual_ratio: float | None
    share: float
    alike_ns: int


def stolen(case: Case) -> Stolen | None:
    """None where as good as nothing was stolen."""
    begins, ends, ratios = _worst(case.evidence.cpu_seconds, case.window)
    if not ratios.any():
        return None
    lost = _lost_in(case, begins, ends)
    ratio = float(np.average(ratios, weights=lost)) if lost.sum() else 0.0
    if ratio < _NONE:
        return None
    usual_ratio = _usual_ratio(case)
    beyond = np.maximum(ratios - (usual_ratio or 0.0), 0) * (ends - begins)
    alike = alike_ns(case) if ratio < _OF_ALL else 0
    rest = lost * (1 - min(alike / max(case.lost_ns, 1), 1.0))
    return Stolen(
        ratio=ratio,
        usual_ratio=usual_ratio,
        share=float(np.minimum(rest, beyond).sum() / lost.sum()),
        alike_ns=alike,
    )


def _worst(rows: Array, window: Window) -> tuple[Array, Array, Array]:
    """Begin and end of each second that touches a window, and the share that was stolen of its worst CPU."""
    begins = rows["time_ns"] - rows["elapsed_ns"]
    rows = rows[(begins < window.end_ns) & (rows["time_ns"] > window.begin_ns)]
    ends, first, second_of = np.unique(rows["time_ns"], return_index=True, return_inverse=True)
    worst = np.zeros(len(ends))
    np.maximum.at(worst, second_of, rows["steal_ns"] / np.maximum(rows["elapsed_ns"], 1))
    return ends - rows["elapsed_ns"][first], ends, worst


def _lost_in(case: Case, begins: Array, ends: Array) -> Array:
    """Lost ns of each second, by the ends of the sync intervals, which are in order; those read stand for all."""
    until = np.append(0, np.cumsum(np.maximum(case.excess_ns, 0)))
    at = [np.searchsorted(case.sync_intervals["sync_end_ns"], times, side="right") for times in (begins, ends)]
    lost: Array = until[at[1]] - until[at[0]]
    return lost * max(case.lost_ns, 0) / max(float(until[-1]), 1.0)


def _usual_ratio(case: Case) -> float | None:
    """While recording, the reference may be older than the window that is looked at."""
    if not case.baselines:
        return None
    evidence = case.evidence
    around = Window(
        begin_ns=min(one.begin_ns for one in case.baselines), end_ns=max(one.end_ns for one in case.baselines)
    )
    is_at_hand = evidence.window.begin_ns <= around.begin_ns and around.end_ns <= evidence.window.end_ns
    rows = evidence.cpu_seconds if is_at_hand else evidence.reader.cpu_seconds(around)
    begins, ends, ratios = _worst(rows, around)
    inside = Spans(case.baselines).hold(begins, ends)
    return float(ratios[inside].mean()) if inside.any() else None
