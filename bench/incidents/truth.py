"""The true cost of a disturbance: the same steps with and without it, from the workload's own log."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.incidents.recording import Label
from ingero.demo.workloads import steps

_S = 1_000_000_000
_ENOUGH_STEPS = 100  # to tell how fast the machine was,
_AT_ONCE = 16  # of them: a loop that waits for every eighth has seven that are only enqueued
NOTICEABLE = 0.05  # of wall time lost: from there on the agent has two seconds to say so (the project's promise)


_MARK = np.dtype([("start_ns", "i8"), ("kind", "U16")])


def step_marks(folder: Path) -> npt.NDArray[Any]:
    """When each step of a kept run truly began, CLOCK_MONOTONIC ns, and its kind: (start_ns, kind) from the first on.

    Micro steps are left out: what a program repeats begins with the first of them.
    """
    return np.array([mark for mark in Label.read(folder).marks if mark[1] != steps.MICRO], _MARK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The cost in ns, signed; wall_ns: the duration of the disturbance. noticeable_ns: when 5% of it were lost."""

    lost_ns: int
    wall_ns: int
    noticeable_ns: int | None

    @property
    def dose(self) -> float:
        """The lost share of wall time."""
        return self.lost_ns / max(self.wall_ns, 1)


def truth(label: Label, control: Label) -> Truth | None:
    """The loss of a run against its control; None where there is nothing to compare."""
    if not label.spells or len(control.steps_ns) < 2:
        return None
    begin, end = max(label.spells[0][0], label.begin_ns), min(label.spells[-1][1], label.end_ns)
    baseline = _BaselineSteps(control, label)
    lost, wall = _lost(label, baseline, begin, end)
    return Truth(lost_ns=lost, wall_ns=wall, noticeable_ns=_noticeable(label, baseline, begin, end))


class _BaselineSteps:
    """How long steps of a run take undisturbed: as the same ones of its control, at the pace of its own machine.

    Two runs on a shared machine differ by up to 7% before anything disturbs them; the steps before tell by how much.
    Of a run disturbed from its first second nothing does.
    """

    def __init__(self, control: Label, label: Label) -> None:
        self._steps, self._shift = control.steps_ns, label.first_step - control.first_step
        before = np.diff(label.steps_ns[: bisect_right(label.steps_ns, label.spells[0][0])])
        first = max(0, -self._shift)  # of them that the control has
        theirs = np.diff(control.steps_ns)[first + self._shift :][: max(0, len(before) - first)]
        mine = before[first:][: len(theirs)]
        self._pace = 1.0
        if len(mine) >= _ENOUGH_STEPS:
            whole = len(mine) // _AT_ONCE * _AT_ONCE
            mine, theirs = (one[:whole].reshape(-1, _AT_ONCE).sum(axis=1) for one in (mine, theirs))
            self._pace = float(np.median(mine / np.maximum(theirs, 1)))

    def ns(self, first: int, last: int) -> int:
        """From one step's end to another's, by their place in the run; the mean where the control has not got there."""
        low, high = first + self._shift, last + self._shift
        steps = self._steps
        if low >= 0 and high < len(steps):
            return round(self._pace * (steps[high] - steps[low]))
        return round(self._pace * (last - first) * (steps[-1] - steps[0]) / (len(steps) - 1))


def _lost(label: Label, baseline: _BaselineSteps, begin_ns: int, end_ns: int) -> tuple[int, int]:
    """From the last step that ended before it began to the first that ended after it."""
    steps = label.steps_ns
    first = max(0, bisect_right(steps, begin_ns) - 1)
    last = min(bisect_left(steps, end_ns), len(steps) - 1)
    if last <= first or steps[last] < end_ns - (end_ns - begin_ns) // 2:  # it never came back
        return end_ns - begin_ns - baseline.ns(0, max(0, last - first)), end_ns - begin_ns
    wall = steps[last] - steps[first]
    return wall - baseline.ns(first, last), wall


def _noticeable(label: Label, baseline: _BaselineSteps, begin_ns: int, end_ns: int) -> int | None:
    """The end of the first second until which 5% of the time since the beginning were lost."""
    for until_ns in range(begin_ns + _S, end_ns + 1, _S):
        lost, wall = _lost(label, baseline, begin_ns, until_ns)
        if lost > NOTICEABLE * wall:
            return until_ns
    return None
