"""What a disturbance really cost: the same steps with and without it, from the workload's own log."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from bench.incidents.recording import Label

_S = 1_000_000_000
NOTICEABLE = 0.05  # of wall time lost: from there on the agent has two seconds to say so (the project's promise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Signed, in ns; wall_ns is how long the disturbance was there. noticeable_ns: when 5 % of it were lost."""

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
    lost, wall = _lost(label, control, begin, end)
    return Truth(lost_ns=lost, wall_ns=wall, noticeable_ns=_noticeable(label, control, begin, end))


def _lost(label: Label, control: Label, begin_ns: int, end_ns: int) -> tuple[int, int]:
    """From the last step that ended before it began to the first that ended after it."""
    steps = label.steps_ns
    first = max(0, bisect_right(steps, begin_ns) - 1)
    last = min(bisect_left(steps, end_ns), len(steps) - 1)
    if last <= first or steps[last] < end_ns - (end_ns - begin_ns) // 2:  # it never came back
        return end_ns - begin_ns - _usual(control, label.first_step, 0, max(0, last - first)), end_ns - begin_ns
    wall = steps[last] - steps[first]
    return wall - _usual(control, label.first_step, first, last), wall


def _usual(control: Label, first_step: int, first: int, last: int) -> int:
    """How long the control took for the steps of the same numbers; its mean step where it has not got as far."""
    steps = control.steps_ns
    low, high = first_step + first - control.first_step, first_step + last - control.first_step
    if low >= 0 and high < len(steps):
        return steps[high] - steps[low]
    return (last - first) * (steps[-1] - steps[0]) // (len(steps) - 1)


def _noticeable(label: Label, control: Label, begin_ns: int, end_ns: int) -> int | None:
    """The end of the first second until which 5 % of the time since the beginning were lost."""
    for until_ns in range(begin_ns + _S, end_ns + 1, _S):
        lost, wall = _lost(label, control, begin_ns, until_ns)
        if lost > NOTICEABLE * wall:
            return until_ns
    return None
