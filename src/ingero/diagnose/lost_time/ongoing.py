"""Whether an open incident goes on where tracing has changed, so that its lost time has nothing to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.findings import FindingKind, Incident
from ingero.diagnose.lost_time.best_regime import usual_sync_intervals
from ingero.events import SyncIntervalFlag
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

_RECENT_NS = 2 * SECOND_NS  # of intervals that are looked at; and from its last lost time to the change, at most
_MIN_INTERVALS = 5  # in that time, before anything is said
_LESS_TRACED = int(
    SyncIntervalFlag.ENQUEUES_UNSEEN | SyncIntervalFlag.UNTIMED
)  # of sync intervals, and of steps by repetition
_STILL = 0.5  # of what an interval of the incident took beyond the usual; traced less, a step costs less


def goes_on(gpu_stream: Array, incident: Incident, lost_until_ns: int) -> bool:
    """Whether the intervals of its affected process are still as long since launches are not traced, or are again.

    stream: of the affected process, in order of time. What is found anew is never compared across such a change; here
    it only tells whether what was proven before it is over.
    """
    if incident.kind is FindingKind.BOTTLENECK or len(gpu_stream) < _MIN_INTERVALS:
        return False
    less_traced = (gpu_stream["flags"] & _LESS_TRACED) != 0
    other = less_traced != less_traced[-1]
    change_ns = int(gpu_stream["sync_end_ns"][other][-1]) if other.any() else 0
    if not incident.start_ns < change_ns <= lost_until_ns + _RECENT_NS:
        return False
    recent = ~other & (
        gpu_stream["prev_sync_end_ns"] >= max(change_ns, int(gpu_stream["sync_end_ns"][-1]) - _RECENT_NS)
    )
    took_ns, usual_ns = _lengths_ns(gpu_stream[other], incident)
    if recent.sum() < _MIN_INTERVALS or not usual_ns:
        return False
    now_ns = float((gpu_stream["sync_end_ns"] - gpu_stream["prev_sync_end_ns"])[recent].mean())
    return now_ns >= usual_ns + _STILL * max(took_ns - usual_ns, 0.0)


def _lengths_ns(gpu_stream: Array, incident: Incident) -> tuple[float, float]:
    """What an interval of the incident took on average, and what is usual for such; 0 where nothing is."""
    usual = usual_sync_intervals(gpu_stream)
    during = gpu_stream[(gpu_stream["sync_end_ns"] > incident.start_ns) & np.isin(gpu_stream["step_type"], list(usual))]
    if not len(during):
        return 0.0, 0.0
    expected = [usual[key].reference.t_ns for key in during["step_type"].tolist()]
    return float((during["sync_end_ns"] - during["prev_sync_end_ns"]).mean()), float(np.mean(expected))
