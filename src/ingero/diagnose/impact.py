"""What an affected process noticed of a case: its steps or sync intervals per second and their lengths, against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingero.diagnose.cases import Case
from ingero.diagnose.model import Impact
from ingero.events import STATES
from ingero.store.records import Window
from ingero.store.spans import Spans

Array = np.ndarray[Any, np.dtype[Any]]

_INVOLUNTARY = [STATES.index(name) for name in ("runq", "throttled", "yielded")]
_PARTS = ("idle", "launch", "sync")


def impact_of(case: Case) -> Impact | None:
    """None where no sync interval of the stream is left in the case's window."""
    gpu_stream = case.evidence.gpu_streams[case.process.process]
    now, usual = _within(gpu_stream, [case.window]), _within(gpu_stream, case.baselines)
    if not len(now):
        return None
    clocks = [one for one in case.evidence.thread_state_totals(case.window) if one.process == case.process.process]
    return Impact(
        interval=case.evidence.main_streams[case.process.process].noun,
        intervals_per_s=_rate(now),
        usual_intervals_per_s=_rate(usual) if len(usual) else None,
        p50_ns=_quantile(now, 0.5),
        usual_p50_ns=_quantile(usual, 0.5) if len(usual) else None,
        p99_ns=_quantile(now, 0.99),
        usual_p99_ns=_quantile(usual, 0.99) if len(usual) else None,
        involuntary_ratio=_involuntary(case.sync_intervals),
        usual_involuntary_ratio=_usual_involuntary(case),
        preemptions=clocks[0].preemptions if clocks else None,
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
    """Of the time of the thread on the path."""
    spent = sum(int(np.maximum(sync_intervals[f"{part}_state_ns"][:, _INVOLUNTARY], 0).sum()) for part in _PARTS)
    return spent / max(int(_lengths(sync_intervals).sum()), 1)


def _usual_involuntary(case: Case) -> float | None:
    """By the mean clocks of the references of the classes seen, each as often as it was seen."""
    if not case.baselines:
        return None
    spent = length = 0.0
    for key, usual in case.usual.items():
        count = int((case.sync_intervals["step_type"] == key).sum())
        clocks = (usual.idle_state_ns, usual.launch_state_ns, usual.sync_state_ns)
        spent += count * sum(float(one[_INVOLUNTARY].sum()) for one in clocks)
        length += count * usual.reference.t_ns
    return spent / length if length else None
