"""Whether an open incident goes on where tracing has changed, so that its loss is compared with nothing any more."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.model import FindingKind, Incident
from ingero.diagnose.regimes import usual_epochs
from ingero.events import EpochFlag
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

_RECENT_NS = 2 * SECOND_NS  # of intervals that are looked at; and from its last loss to the change, at most
_MIN_INTERVALS = 5  # in that time, before anything is said
_LESS_TRACED = int(EpochFlag.ENQUEUES_UNSEEN | EpochFlag.UNTIMED)  # of sync intervals, and of steps by repetition
_STILL = 0.5  # of what an interval of the incident took beyond the usual; traced less, a step costs less


def goes_on(lane: Array, incident: Incident, lost_until_ns: int) -> bool:
    """Whether the intervals of its victim are still as long since launches are not traced, or are again.

    lane: of the victim, in order of time. What is found anew is never compared across such a change; here it only
    tells whether what was proven before it is over.
    """
    if incident.kind is FindingKind.BOTTLENECK or len(lane) < _MIN_INTERVALS:
        return False
    less_traced = (lane["flags"] & _LESS_TRACED) != 0
    other = less_traced != less_traced[-1]
    change_ns = int(lane["b_ns"][other][-1]) if other.any() else 0
    if not incident.start_ns < change_ns <= lost_until_ns + _RECENT_NS:
        return False
    recent = ~other & (lane["a_ns"] >= max(change_ns, int(lane["b_ns"][-1]) - _RECENT_NS))
    took_ns, usual_ns = _lengths_ns(lane[other], incident)
    if recent.sum() < _MIN_INTERVALS or not usual_ns:
        return False
    now_ns = float((lane["b_ns"] - lane["a_ns"])[recent].mean())
    return now_ns >= usual_ns + _STILL * max(took_ns - usual_ns, 0.0)


def _lengths_ns(lane: Array, incident: Incident) -> tuple[float, float]:
    """What an interval of the incident took on average, and what is usual for such; 0 where nothing is."""
    usual = usual_epochs(lane)
    during = lane[(lane["b_ns"] > incident.start_ns) & np.isin(lane["class_key"], list(usual))]
    if not len(during):
        return 0.0, 0.0
    expected = [usual[key].reference.t_ns for key in during["class_key"].tolist()]
    return float((during["b_ns"] - during["a_ns"]).mean()), float(np.mean(expected))
