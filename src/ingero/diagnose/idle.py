"""Time without demand: the device is empty because nobody asked for anything. It is not lost."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.evidence import Evidence
from ingero.diagnose.waits import Segment
from ingero.events import CLOCKS
from ingero.store.records import Process

Array = np.ndarray[Any, np.dtype[Any]]

_SLEEP = CLOCKS.index("sleep")
_WORTH_NS = 500_000  # shorter gaps are not asked about
_SERVES = 0.05  # of the sleep with an empty device ends by somebody outside: the process serves requests


def demanded(evidence: Evidence, process: Process, epochs: Array) -> Array:
    """The epochs without their time without demand: each begins when it was asked for something."""
    idle = idle_ns(evidence, process, epochs)
    if not idle.any():
        return epochs
    shortened = epochs.copy()
    whole = idle.astype(np.int64)
    shortened["a_ns"] += whole
    shortened["e_ns"] -= whole
    sleep = shortened["empty_clock_ns"][:, _SLEEP]
    shortened["empty_clock_ns"][:, _SLEEP] = np.where(sleep > 0, np.maximum(sleep - whole, 0), sleep)
    result: Array = shortened
    return result


def idle_ns(evidence: Evidence, process: Process, epochs: Array) -> Array:
    """Per epoch, the sleep of the draining thread that ended in somebody outside the process and its workers.

    A sleep that a timer ends is idle, too, where the process is seen to serve requests: that is a poll loop.
    """
    outside, timer = np.zeros(len(epochs)), np.zeros(len(epochs))
    if not len(evidence.offcpu):
        return outside
    family = evidence.family(process.process)
    for index in np.flatnonzero(epochs["e_ns"] > _WORTH_NS).tolist():
        epoch = epochs[index]
        for one in evidence.waits.path(int(epoch["a_tid"]), int(epoch["a_ns"]), int(epoch["f_ns"])):
            if one.state == "sleep" and one.pid == process.pid:
                if _is_outside(one, family):
                    outside[index] += one.duration_ns
                elif one.waker_kind == "timer" and one.depth == 0:
                    timer[index] += one.duration_ns
    total = outside.sum() + timer.sum()
    if total and outside.sum() > _SERVES * total:
        outside += timer
    idle: Array = np.minimum(outside, epochs["e_ns"])
    return idle


def _is_outside(one: Segment, family: set[int]) -> bool:
    if one.waker_kind == "thread":
        return one.waker_pid > 0 and one.waker_pid not in family
    return one.waker_kind == "network"
