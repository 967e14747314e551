"""Which of many moments, each to a bound, are known to come after all that stand before them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator


def are_known(moments: Iterable[tuple[int, int, Hashable]]) -> Iterator[bool]:
    """Of each (time, bound, machine), earliest time first, whether it came after all before it.

    It is compared with the latest moment that one of another machine may have been at. Of moments of one machine that
    is known without a bound.
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
