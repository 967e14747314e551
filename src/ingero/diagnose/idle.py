"""Time without demand: the device is empty because nobody asked for anything. It is not lost."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.evidence import Evidence
from ingero.diagnose.samples import sample_windows
from ingero.diagnose.waits import Segment
from ingero.events import CLOCKS
from ingero.store.records import Process

Array = np.ndarray[Any, np.dtype[Any]]

_SLEEP = CLOCKS.index("sleep")
_WORTH_NS = 500_000  # shorter gaps are not asked about
_SERVES = 0.05  # of the sleep with an empty device ends by somebody outside: the process serves requests
_FEW = 2_000  # gaps that are followed without asking first whether anybody outside ever woke the process
_ANY_DEMAND = 0.001  # of the window asleep until somebody outside ended it; less is no service


def shortened(epochs: Array, idle: Array) -> Array:
    """The epochs (of either kind) without their time without demand: each begins when it was asked for something."""
    if not idle.any():
        return epochs
    result: Array = epochs.copy()
    whole = idle.astype(np.int64)
    result["a_ns"] += whole
    result["e_ns"] -= whole
    sleep = result["empty_clock_ns"][:, _SLEEP] if "empty_clock_ns" in (result.dtype.names or ()) else None
    if sleep is None:
        sleep = result["empty_sleep_ns"]
    sleep[:] = np.where(sleep > 0, np.maximum(sleep - whole, 0), sleep)
    return result


def idle_ns(evidence: Evidence, process: Process, lane: Array) -> Array:
    """Per epoch, the sleep of the draining thread that ended in somebody outside the process and its workers.

    A sleep that a timer ends is idle, too, where the process is seen to serve requests: that is a poll loop. Of very
    many gaps a sample is followed; the rest is idle for the share of its sleep that the sample was.
    """
    idle = np.zeros(len(lane))
    asleep = (lane["empty_sleep_ns"] < 0) | (lane["empty_sleep_ns"] > _WORTH_NS)
    gaps = np.flatnonzero((lane["e_ns"] > _WORTH_NS) & asleep)
    if not len(gaps) or not evidence.has_offcpu:
        return idle
    if (len(gaps) > _FEW or evidence.is_live) and not _may_serve(evidence, process):
        return idle
    asked = _asked(lane, gaps)
    outside, timer = _followed(evidence, process, lane, asked)
    total = outside.sum() + timer.sum()
    if total and outside.sum() > _SERVES * total:
        outside += timer
    idle[asked] = outside
    if len(asked) < len(gaps):
        rest = np.setdiff1d(gaps, asked, assume_unique=True)
        slept = np.maximum(lane["empty_sleep_ns"], 0)
        idle[rest] = slept[rest] * min(1.0, outside.sum() / max(int(slept[asked].sum()), 1))
    result: Array = np.minimum(idle, lane["e_ns"])
    return result


def _asked(lane: Array, gaps: Array) -> Array:
    """The gaps that are followed: all of few."""
    windows = sample_windows(lane[gaps], np.zeros(len(gaps)))
    ends = lane["b_ns"][gaps]
    inside = np.zeros(len(gaps), bool)
    for window in windows:
        inside |= (ends >= window.begin_ns) & (ends < window.end_ns)
    chosen: Array = gaps[inside]
    return chosen


def _followed(evidence: Evidence, process: Process, lane: Array, asked: Array) -> tuple[Array, Array]:
    """Per gap: asleep until somebody outside, and until a timer."""
    outside, timer = np.zeros(len(asked)), np.zeros(len(asked))
    family = evidence.family(process.process)
    times = zip(*(lane[name][asked].tolist() for name in ("a_tid", "a_ns", "f_ns")), strict=True)
    for index, (tid, begin_ns, end_ns) in enumerate(times):
        for one in evidence.waits.path(tid, begin_ns, end_ns):
            if one.state == "sleep" and one.pid == process.pid:
                if _is_outside(one, family):
                    outside[index] += one.duration_ns
                elif one.waker_kind == "timer" and one.depth == 0:
                    timer[index] += one.duration_ns
    return outside, timer


def _may_serve(evidence: Evidence, process: Process) -> bool:
    """Whether sleeps of the process were ended by the network or by other processes, to an extent."""
    family = evidence.family(process.process)
    slept = sum(
        one.sleep_ns
        for one in evidence.wakers(process.process)
        if one.waker_kind == "network" or (one.waker_pid > 0 and one.waker_pid not in family)
    )
    return slept > _ANY_DEMAND * evidence.window.duration_ns


def _is_outside(one: Segment, family: set[int]) -> bool:
    if one.waker_kind == "thread":
        return one.waker_pid > 0 and one.waker_pid not in family
    return one.waker_kind == "network"
