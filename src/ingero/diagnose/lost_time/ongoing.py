"""Whether an incident is still ongoing after tracing has changed, when its lost time has nothing to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.findings import FindingKind, Incident
from ingero.diagnose.lost_time.best_regime import class_references
from ingero.events import SyncIntervalFlag
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

_RECENT_NS = 2 * SECOND_NS  # of intervals that are judged; also the longest time from the last lost time to the change
_MIN_INTERVALS = 5  # in that time, before they are judged
_LESS_TRACED = int(SyncIntervalFlag.ENQUEUES_UNSEEN | SyncIntervalFlag.UNTIMED)  # sync intervals, and steps
# Of the incident's excess per interval that must remain; with less tracing, a step costs less.
_MIN_REMAINING = 0.5


def is_ongoing(gpu_stream: Array, incident: Incident, lost_until_ns: int) -> bool:
    """Whether the affected process's intervals stayed as long when launches ceased to be traced, or are traced again.

    gpu_stream: of the affected process, in order of time. New lost time is never compared across such a change; the
    comparison here only decides whether an incident that was proven before the change is over.
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
    incident_ns, baseline_ns = _mean_lengths_ns(gpu_stream[other], incident)
    if recent.sum() < _MIN_INTERVALS or not baseline_ns:
        return False
    now_ns = float((gpu_stream["sync_end_ns"] - gpu_stream["prev_sync_end_ns"])[recent].mean())
    return now_ns >= baseline_ns + _MIN_REMAINING * max(incident_ns - baseline_ns, 0.0)


def _mean_lengths_ns(gpu_stream: Array, incident: Incident) -> tuple[float, float]:
    """The mean length of the incident's intervals, and by their references; 0 where none has a reference."""
    references = class_references(gpu_stream)
    has_reference = np.isin(gpu_stream["step_type"], list(references))
    during = gpu_stream[(gpu_stream["sync_end_ns"] > incident.start_ns) & has_reference]
    if not len(during):
        return 0.0, 0.0
    expected = [references[key].reference.t_ns for key in during["step_type"].tolist()]
    return float((during["sync_end_ns"] - during["prev_sync_end_ns"]).mean()), float(np.mean(expected))
