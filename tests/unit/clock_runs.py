"""Runs of clocks that tests and the bench judge: pairs of events in time, a day of drift, a step."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from ingero.fleet.clocks import EXCHANGES, Clock, Order, change_between, clock_at, estimate, order
from tests.unit.delayed_clock import MessageDelay, node_behind_proxy

_MS = 1_000_000
_APART_NS = 37 * _MS
_IDLE = MessageDelay(least_s=100e-6, beyond_s=80e-6)
_HOUR_NS = 3_600 * 10**9


def clock(offset_ns: int, bound_ns: int, at_ns: int = 0) -> Clock:
    """A clock that is known to be so far ahead, to such a bound."""
    return Clock(offset_ns=offset_ns, bound_ns=bound_ns, at_ns=at_ns, exchanges=EXCHANGES)


@dataclass(frozen=True, slots=True)
class OrderCounts:
    """Counts of pairs of events on two nodes: orders that were wrong, that were stated, and that had to be stated."""

    wrong: int
    said: int
    clear: int


def order_pairs(rng: random.Random, count: int) -> OrderCounts:
    """Pairs within 2 ms, on nodes whose clocks are up to 37 ms off and known to 0.05 to 0.4 ms."""
    wrong = said = clear = 0
    for _ in range(count):
        clocks, offsets = [], []
        for _ in range(2):
            bound_ns = rng.randrange(50_000, 400_000)
            offsets.append(rng.randrange(-_APART_NS, _APART_NS))
            clocks.append(clock(offsets[-1] + rng.randint(-bound_ns, bound_ns), bound_ns))
        one_ns, other_ns = rng.randrange(2 * _MS), rng.randrange(2 * _MS)
        found = order(one_ns + offsets[0], clocks[0], other_ns + offsets[1], clocks[1])
        wrong += found is (Order.AFTER if one_ns < other_ns else Order.BEFORE)
        said += found is not Order.NOT_KNOWN
        clear += abs(one_ns - other_ns) > 2 * (clocks[0].bound_ns + clocks[1].bound_ns)
    return OrderCounts(wrong, said, clear)


def day_of_drift(rng: random.Random) -> tuple[list[tuple[int, int]], float]:
    """A clock that gains 50 ppm, estimated each hour: errors and bounds in ns at moments of a day, and the ppm."""
    known = []
    for hour in range(25):
        bound_ns = rng.randrange(100_000, 300_000)
        true_ns = hour * _HOUR_NS * 50 // 10**6
        known.append(clock(true_ns + rng.randint(-bound_ns, bound_ns), bound_ns, at_ns=hour * _HOUR_NS))
    found = []
    for _ in range(2_000):
        at_ns = rng.randrange(24 * _HOUR_NS)
        its = clock_at(known, at_ns)
        found.append((abs(its.offset_ns - at_ns * 50 // 10**6), its.bound_ns))
    return found, change_between(known[0], known[-1]).ppm


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStep:
    """The step reported for a clock that was set between two groups of exchanges."""

    steps: int
    step_ns: int
    step_bound_ns: int
    before_error_ns: int
    before_bound_ns: int
    after_error_ns: int
    after_bound_ns: int

    def is_right(self, by_ns: int) -> bool:
        """Whether one step by by_ns was found within its bound, with both sides right within theirs."""
        return (
            self.steps == 1
            and abs(self.step_ns - by_ns) <= self.step_bound_ns
            and self.before_error_ns <= self.before_bound_ns
            and self.after_error_ns <= self.after_bound_ns
        )


def step_through_a_proxy(rng: random.Random, offset_ns: int, by_ns: int) -> ClockStep:
    """Real sockets; the clock is so far ahead, and then set forward."""
    shift_ns = [offset_ns]

    async def run() -> tuple[Clock, Clock]:
        async with node_behind_proxy(_IDLE, _IDLE, lambda: shift_ns[0], rng) as ask:
            before = await ask(EXCHANGES)
            shift_ns[0] += by_ns
            return estimate(before), estimate(before + await ask(EXCHANGES))

    early, late = asyncio.run(run())
    return ClockStep(
        steps=len(late.steps),
        step_ns=late.steps[0].by_ns if late.steps else 0,
        step_bound_ns=late.steps[0].bound_ns if late.steps else 0,
        before_error_ns=abs(early.offset_ns - offset_ns),
        before_bound_ns=early.bound_ns,
        after_error_ns=abs(late.offset_ns - offset_ns - by_ns),
        after_bound_ns=late.bound_ns,
    )
