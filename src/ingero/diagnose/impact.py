"""What a victim noticed of a case: its steps or sync intervals per second and their lengths, against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingero.diagnose.cases import Case
from ingero.diagnose.model import Impact
from ingero.events import CLOCKS
from ingero.store.records import Window
from ingero.store.spans import Spans

Array = np.ndarray[Any, np.dtype[Any]]

_INVOLUNTARY = [CLOCKS.index(name) for name in ("runq", "throttled", "yielded")]
_PARTS = ("empty", "enqueue", "drain")


def impact_of(case: Case) -> Impact | None:
    """None where no epoch of the lane is left in the case's window."""
    lane = case.evidence.lanes[case.process.process]
    now, usual = _within(lane, [case.window]), _within(lane, case.baselines)
    if not len(now):
        return None
    clocks = [one for one in case.evidence.clock_totals(case.window) if one.process == case.process.process]
    return Impact(
        interval=case.evidence.main_lanes[case.process.process].noun,
        intervals_per_s=_rate(now),
        usual_intervals_per_s=_rate(usual) if len(usual) else None,
        p50_ns=_quantile(now, 0.5),
        usual_p50_ns=_quantile(usual, 0.5) if len(usual) else None,
        p99_ns=_quantile(now, 0.99),
        usual_p99_ns=_quantile(usual, 0.99) if len(usual) else None,
        involuntary_ratio=_involuntary(case.epochs),
        usual_involuntary_ratio=_usual_involuntary(case),
        preemptions=clocks[0].preemptions if clocks else None,
    )


def _within(lane: Array, windows: Sequence[Window]) -> Array:
    mine: Array = lane[Spans(windows).have_inside(lane["b_ns"])]
    return mine


def _lengths(epochs: Array) -> Array:
    lengths: Array = epochs["b_ns"] - epochs["a_ns"]
    return lengths


def _rate(epochs: Array) -> float:
    return (len(epochs) + int(epochs["joined"].sum())) * 1e9 / max(int(_lengths(epochs).sum()), 1)


def _quantile(epochs: Array, at: float) -> int:
    return int(np.quantile(_lengths(epochs), at))


def _involuntary(epochs: Array) -> float:
    """Of the time of the thread on the path."""
    spent = sum(int(np.maximum(epochs[f"{part}_clock_ns"][:, _INVOLUNTARY], 0).sum()) for part in _PARTS)
    return spent / max(int(_lengths(epochs).sum()), 1)


def _usual_involuntary(case: Case) -> float | None:
    """By the mean clocks of the references of the classes seen, each as often as it was seen."""
    if not case.baselines:
        return None
    spent = length = 0.0
    for key, usual in case.usual.items():
        count = int((case.epochs["class_key"] == key).sum())
        clocks = (usual.empty_clock_ns, usual.enqueue_clock_ns, usual.drain_clock_ns)
        spent += count * sum(float(one[_INVOLUNTARY].sum()) for one in clocks)
        length += count * usual.reference.t_ns
    return spent / length if length else None
