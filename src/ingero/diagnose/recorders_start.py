"""Whether a loss is that of the recorder's start, which takes CPUs from who is recorded."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.evidence import Evidence
from ingero.diagnose.stretches import MIN_LOSS_NS, MIN_RATIO, Stretch

Array = np.ndarray[Any, np.dtype[Any]]

SETTLING_NS = 2_500_000_000  # from the first second on: reading libraries takes 0.6 s of CPU more in two than later
_MOST_RATIO = 0.2  # of wall time; on two busy CPUs a start took 4 to 19 %


def settled_at_ns(evidence: Evidence, session: int) -> int:
    """When the recorder of a session had started."""
    return evidence.counting_since_ns(session) + SETTLING_NS


def is_recorders_start(evidence: Evidence, session: int, epochs: Array, excess: Array, stretch: Stretch) -> bool:
    """Whether what a stretch of these epochs lost later is not worth telling by itself.

    What loses more than a start takes has another reason.
    """
    settled_ns, window = settled_at_ns(evidence, session), stretch.window
    if window.begin_ns >= settled_ns or stretch.loss_ns >= _MOST_RATIO * stretch.wall_ns:
        return False
    later = (epochs["b_ns"] >= settled_ns) & (epochs["b_ns"] < window.end_ns)
    loss_ns, wall_ns = excess[later].sum(), (epochs["b_ns"] - epochs["a_ns"])[later].sum()
    return bool(loss_ns < max(MIN_LOSS_NS, MIN_RATIO * wall_ns))
