"""Clock offsets of nodes: how far each is from ours, the error bound, and which order of events this proves.

An exchange is asked and answered by our clock, received and sent by the node's. Neither message can have arrived before
it left, which bounds the offset from both sides, whatever the network does and however unequal both ways are. Bounds of
several exchanges hold together: the fastest message each way says most, and one that waits costs nothing.

Source: K. Marzullo, Maintaining the Time in a Distributed System, 1984; RFC 5905, section 10.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ingero.errors import IngeroError
from ingero.units import format_ns

EXCHANGES = 8  # docs/measurements/2026-11-26-fleet-clocks.md
QUERY_SKEW_NS = 10_000_000  # clocks that differ by more are worth a warning where rows of nodes are put together

# Two quartz clocks, 50 ppm each at the worst; whatever disciplines them to less makes this hold all the more.
MAX_DRIFT_PPM = 100
_MAX_NS = 1 << 63


class ClockError(IngeroError):
    """The times that a node reports are impossible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Four readings of two clocks, Unix ns: ours when asking and on the answer, the node's in between."""

    asked_ns: int
    received_ns: int
    sent_ns: int
    answered_ns: int

    @property
    def least_ns(self) -> int:
        """Lower bound of the offset: the node cannot have received the question before it was sent."""
        return self.sent_ns - self.answered_ns

    @property
    def most_ns(self) -> int:
        """Upper bound of the offset: the answer cannot have been received before the node sent it."""
        return self.received_ns - self.asked_ns

    @property
    def round_trip_ns(self) -> int:
        """Network time, both ways together; below 0 if a clock was set meanwhile."""
        return self.most_ns - self.least_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step: our clock or the node's was set. at_ns: latest time of it by our clock. by_ns: growth of the offset."""

    at_ns: int
    by_ns: int
    bound_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The clock of a node at one time: ahead of ours by offset_ns, within bound_ns.

    at_ns: that time by our clock. exchanges: how many it was computed from. steps: clock steps while the node was
    queried. drift_ppm: how fast it gains on ours, where the exchanges before and after show it.
    """

    offset_ns: int
    bound_ns: int
    at_ns: int
    exchanges: int
    steps: tuple[Step, ...] = ()
    drift_ppm: float | None = None

    def ours(self, node_ns: int) -> int:
        """A time of the node converted to our clock, within `bound_at`."""
        return node_ns - self.offset_ns

    def bound_at(self, our_ns: int) -> int:
        """Error bound of the offset at another time, in ns: it drifts by 100 ppm at most."""
        return self.bound_ns + drift_ns(our_ns - self.at_ns)


OURS = Clock(offset_ns=0, bound_ns=0, at_ns=0, exchanges=0)
"""Our own clock."""


class Order(enum.Enum):
    """The order of two events on different nodes."""

    BEFORE = "before"
    AFTER = "after"
    NOT_KNOWN = "order not known"


class Kind(enum.Enum):
    """How an offset changed between two estimates."""

    NONE = "none that can be determined"
    DRIFT = "drift"
    STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change between two estimates. by_ns: growth of the offset, within bound_ns. ppm: that as a rate."""

    kind: Kind
    by_ns: int
    bound_ns: int
    ppm: float


def drift_ns(elapsed_ns: int) -> int:
    """How far two clocks may drift apart in a time, in ns."""
    return -(-abs(elapsed_ns) * MAX_DRIFT_PPM // 1_000_000)


def estimate(exchanges: Sequence[Exchange]) -> Clock:
    """Estimate the node's clock from exchanges in order, `EXCHANGES` of them or more.

    Its bound is never more than half the shortest round trip and the drift within that.

    Raises:
        ClockError: there are no exchanges, or only impossible ones.
    """
    runs: list[list[Exchange]] = []
    for exchange in exchanges:
        if not all(0 <= value < _MAX_NS for value in (exchange.received_ns, exchange.sent_ns)):
            raise ClockError("the node reports an invalid time", hint="its clock is not used; ask it for /api/v2/time")
        if exchange.round_trip_ns < 0 or exchange.answered_ns < exchange.asked_ns:
            continue  # a clock was set while it was on its way: it belongs to neither side
        if not runs or _common([*runs[-1], exchange], exchange.asked_ns) is None:
            runs.append([])
        runs[-1].append(exchange)
    if not runs:
        raise ClockError("no exchange with the node says what its clock is", hint="ask it again")
    found = [_of_run(run) for run in runs]
    steps = tuple(
        Step(
            at_ns=run[0].answered_ns,
            by_ns=after.offset_ns - before.offset_ns,
            bound_ns=before.bound_ns + after.bound_ns,
        )
        for before, after, run in zip(found, found[1:], runs[1:], strict=False)
    )
    last = found[-1]
    return Clock(
        offset_ns=last.offset_ns, bound_ns=last.bound_ns, at_ns=last.at_ns, exchanges=last.exchanges, steps=steps
    )


def clock_of(before: Sequence[Exchange], after: Sequence[Exchange]) -> Clock:
    """The node's clock from exchanges before a question and after its answer: a clock can be set, or drift, meanwhile.

    Raises:
        ClockError: as `estimate`.
    """
    known = estimate([*before, *after])
    if not before or not after or known.steps:
        return known
    drifted = change_between(estimate(before), estimate(after))
    return replace(known, drift_ppm=drifted.ppm) if drifted.kind is Kind.DRIFT else known


def through_relay(relay: Clock, node: Clock) -> Clock:
    """The clock of a node behind a relay: `node` is relative to the relay's clock, `relay` to ours.

    Offsets add up, and so do bounds: it is never more exact than the relay's own clock, or than the relay claims.
    """
    at_ns = relay.ours(node.at_ns)
    by_relay_ns = relay.bound_at(at_ns) + drift_ns(relay.bound_ns)  # at_ns itself is not known any better
    steps = tuple(
        Step(at_ns=relay.ours(step.at_ns), by_ns=step.by_ns, bound_ns=step.bound_ns + by_relay_ns)
        for step in node.steps
    )
    return Clock(
        offset_ns=relay.offset_ns + node.offset_ns, bound_ns=by_relay_ns + node.bound_ns, at_ns=at_ns,
        exchanges=node.exchanges, steps=steps,
    )  # fmt: skip


def _common(run: Sequence[Exchange], at_ns: int) -> tuple[int, int] | None:
    """The lowest and highest offset that all exchanges allow at a time; None: none fits, so a clock was set."""
    least, most = -_MAX_NS, _MAX_NS
    for one in run:
        drifted_ns = drift_ns(max(abs(at_ns - one.asked_ns), abs(at_ns - one.answered_ns)))
        least, most = max(least, one.least_ns - drifted_ns), min(most, one.most_ns + drifted_ns)
    return (least, most) if least <= most else None


def _of_run(run: Sequence[Exchange]) -> Clock:
    """The clock at the time of the fastest exchange, which limits the bound most."""
    fastest = min(run, key=lambda one: one.round_trip_ns)
    least, most = _common(run, fastest.asked_ns) or (fastest.least_ns, fastest.most_ns)
    return Clock(
        offset_ns=(least + most) // 2, bound_ns=-(-(most - least) // 2), at_ns=fastest.asked_ns, exchanges=len(run)
    )


def change_between(before: Clock, after: Clock) -> Change:
    """How a node's clock changed between two estimates: up to 100 ppm is drift, more is a step."""
    by_ns, bound_ns = after.offset_ns - before.offset_ns, before.bound_ns + after.bound_ns
    elapsed_ns = max(after.at_ns - before.at_ns, 1)
    kind = Kind.NONE if abs(by_ns) <= bound_ns else Kind.DRIFT
    if abs(by_ns) > bound_ns + drift_ns(elapsed_ns) or after.steps:
        kind = Kind.STEP
    return Change(kind=kind, by_ns=by_ns, bound_ns=bound_ns, ppm=by_ns / elapsed_ns * 1e6)


def with_changes_since(before: Clock | None, now: Clock) -> Clock:
    """The later of two estimates, with the drift or step since the earlier one."""
    if before is None or now.steps:
        return now
    since = change_between(before, now)
    if since.kind is Kind.STEP:
        return replace(now, steps=(Step(at_ns=now.at_ns, by_ns=since.by_ns, bound_ns=since.bound_ns),))
    return replace(now, drift_ppm=since.ppm) if since.kind is Kind.DRIFT else now


def clock_at(clocks: Sequence[Clock], our_ns: int) -> Clock:
    """The node's clock at a time, from at least one estimate, in the order of time.

    Between two estimates the offset changes at an even rate. The bound is what both allow at 100 ppm, so that it holds
    for an uneven rate, too. Where a step lies between, each estimate stands for its own side, the bound for both.
    """
    before = [clock for clock in clocks if clock.at_ns <= our_ns]
    after = [clock for clock in clocks if clock.at_ns > our_ns]
    if not before or not after:
        nearest = before[-1] if before else after[0]
        return Clock(
            offset_ns=nearest.offset_ns, bound_ns=nearest.bound_at(our_ns), at_ns=our_ns, exchanges=nearest.exchanges
        )
    first, last = before[-1], after[0]
    least = max(first.offset_ns - first.bound_at(our_ns), last.offset_ns - last.bound_at(our_ns))
    most = min(first.offset_ns + first.bound_at(our_ns), last.offset_ns + last.bound_at(our_ns))
    if least > most or last.steps:  # set in between, and it is not known when
        nearest = min(first, last, key=lambda clock: abs(clock.at_ns - our_ns))
        bound_ns = abs(last.offset_ns - first.offset_ns) + max(first.bound_at(our_ns), last.bound_at(our_ns))
        return Clock(offset_ns=nearest.offset_ns, bound_ns=bound_ns, at_ns=our_ns, exchanges=nearest.exchanges)
    part_ns, whole_ns = our_ns - first.at_ns, last.at_ns - first.at_ns
    offset_ns = first.offset_ns + (last.offset_ns - first.offset_ns) * part_ns // whole_ns
    offset_ns = min(max(offset_ns, least), most)
    return Clock(
        offset_ns=offset_ns,
        bound_ns=max(most - offset_ns, offset_ns - least),
        at_ns=our_ns,
        exchanges=first.exchanges + last.exchanges,
    )


def order(one_ns: int, clock: Clock, other_ns: int, other: Clock) -> Order:
    """Which of two events came first, each timed by its node; known only where the bounds do not overlap."""
    if clock is other:
        return Order.NOT_KNOWN if one_ns == other_ns else Order.BEFORE if one_ns < other_ns else Order.AFTER
    mine, theirs = clock.ours(one_ns), other.ours(other_ns)
    overlap_ns = clock.bound_at(mine) + other.bound_at(theirs)
    if abs(theirs - mine) <= overlap_ns:
        return Order.NOT_KNOWN
    return Order.BEFORE if mine < theirs else Order.AFTER


def warnings(
    clocks: Mapping[str, Clock], threshold_ns: int = QUERY_SKEW_NS, *, ours: str = "this host"
) -> Iterator[str]:
    """Warnings, one sentence each: clocks that are off by more than a threshold, worst first, and clocks that were set.

    With three nodes or more the median counts as right, so that a client with a wrong clock does not blame them all.
    ours: name of the host that compared them.
    """
    offsets = {node: clock.offset_ns for node, clock in clocks.items()}
    right_ns = int(statistics.median(offsets.values())) if len(offsets) > 2 else 0
    if abs(right_ns) > threshold_ns:
        yield f"the clock of {ours} is {_off(-right_ns)} those of the nodes"
    for node in sorted(clocks, key=lambda name: (-abs(offsets[name] - right_ns), name)):
        clock, off_ns = clocks[node], offsets[node] - right_ns
        if abs(off_ns) - clock.bound_ns > threshold_ns:
            yield f"the clock of {node} is {_off(off_ns)} the others, to {format_ns(clock.bound_ns)}"
        elif clock.bound_ns > threshold_ns:
            yield f"the clock of {node} is known to {format_ns(clock.bound_ns)} only: its answers take that long"
        for step in clock.steps:
            yield f"a clock was set while {node} was asked: {node} is now {_off(step.by_ns)} before"
        if clock.drift_ppm is not None:
            gains = "gains on" if clock.drift_ppm > 0 else "loses against"
            yield f"the clock of {node} {gains} that of {ours} by {abs(clock.drift_ppm):.0f} ppm"


def _off(by_ns: int) -> str:
    return f"{format_ns(abs(by_ns))} {'ahead of' if by_ns > 0 else 'behind'}"
