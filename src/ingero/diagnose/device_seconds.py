"""What the device took in the seconds of some samples of its driver, against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingero.diagnose.cases import Case
from ingero.store.machine import GpuUse
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]


def mean_mhz(samples: Sequence[GpuUse]) -> float:
    """Of its multiprocessors; 0 where it does not say."""
    clocks = [one.sm_clock_mhz for one in samples if one.sm_clock_mhz]
    return sum(clocks) / len(clocks) if clocks else 0.0


def share_of(case: Case, held: Sequence[GpuUse]) -> float:
    """Of what the device took beyond the reference, that of the epochs in these seconds."""
    beyond = np.zeros(len(case.epochs))
    for key, one in case.usual.items():
        mine = case.epochs["class_key"] == key
        beyond[mine] = np.maximum(case.epochs["x_ns"][mine] - one.reference.x_ns, 0)
    return float(beyond[_inside(case, held)].sum() / max(beyond.sum(), 1))


def _inside(case: Case, held: Sequence[GpuUse]) -> Array:
    """The epochs in these seconds; one longer than a second is in all that it touches."""
    begins, ends = case.epochs["a_ns"], case.epochs["b_ns"]
    inside = np.zeros(len(ends), bool)
    for one in held:
        inside |= (ends > one.time_ns - SECOND_NS) & (begins < one.time_ns)
    return inside


def slowdown_of(case: Case, held: Sequence[GpuUse]) -> float | None:
    """Device time against the reference, of the epochs in these seconds."""
    inside = _inside(case, held)
    keys = case.epochs["class_key"][inside]
    usual = sum(one.reference.x_ns * int((keys == key).sum()) for key, one in case.usual.items())
    known = inside & np.isin(case.epochs["class_key"], list(case.usual))
    return float(case.epochs["x_ns"][known].sum()) / usual if usual else None
