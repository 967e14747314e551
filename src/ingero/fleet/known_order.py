"""Decides for times with error bounds which of them are known to come after all earlier ones."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator


def are_in_order(moments: Iterable[tuple[int, int, Hashable]]) -> Iterator[bool]:
    """For each (time, bound, machine), earliest first, whether it is known to come after all before it.

    It is compared with the latest possible time of any event on another machine. Times of one machine need no bound.
    """
    latest: dict[Hashable, float] = {}
    first, second = -math.inf, -math.inf  # of the machine that reaches furthest, and of the others
    whose: Hashable = None
    for time_ns, bound_ns, machine in moments:
        others = second if machine == whose else first
        yield others < time_ns - bound_ns
        latest[machine] = max(latest.get(machine, -math.inf), time_ns + bound_ns)
        if machine == whose:
            first = latest[machine]
        elif latest[machine] > first:
            second, whose = first, machine
            first = latest[machine]
        else:
            second = max(second, latest[machine])
