"""Clocks of nodes: the offset is within its bound, the bound is small, and no order is said that is not proven."""

from __future__ import annotations

import asyncio
import random
import statistics

import pytest

from ingero.fleet.clocks import (
    EXCHANGES,
    OURS,
    Clock,
    ClockError,
    Exchange,
    Kind,
    Order,
    change_between,
    clock_at,
    clock_of,
    estimate,
    order,
    warnings,
    with_changes_since,
)
from tests.unit.clock_runs import clock, day_of_drift, order_pairs, step_through_a_proxy
from tests.unit.delayed_clock import MessageDelay, node_behind_proxy, percentile, simulated

_MS = 1_000_000
SHIFT_NS = 37 * _MS
IDLE = MessageDelay(least_s=100e-6, beyond_s=80e-6)
LONGER = MessageDelay(least_s=250e-6, beyond_s=160e-6)
STALLED = MessageDelay(least_s=100e-6, beyond_s=80e-6, waits=0.2)


def exchange(asked: int, offset: int, *, there: int = 100_000, back: int = 100_000) -> Exchange:
    return Exchange(
        asked_ns=asked,
        received_ns=asked + there + offset,
        sent_ns=asked + there + offset,
        answered_ns=asked + there + back,
    )


def runs(seed: int, there: MessageDelay, back: MessageDelay, count: int = 1000) -> list[tuple[int, Clock, int]]:
    """Of each run the error in ns, the clock, and the shortest round trip in ns."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        ppm = rng.uniform(-50, 50)
        made, offset_ns = simulated(rng, there, back, offset_ns=SHIFT_NS, ppm=ppm, count=EXCHANGES)
        known = estimate(made)
        true_ns = offset_ns + round((known.at_ns - 10**18) * ppm / 1e6)
        found.append((abs(known.offset_ns - true_ns), known, min(one.round_trip_ns for one in made)))
    return found


@pytest.mark.parametrize(
    ("there", "back"),
    [(IDLE, IDLE), (IDLE, LONGER), (STALLED, STALLED), (LONGER, STALLED)],
    ids=["idle", "asym", "busy", "both"],
)
def test_error_is_within_the_bound_and_the_bound_within_half_a_round_trip(
    there: MessageDelay, back: MessageDelay
) -> None:
    found = runs(1, there, back)
    assert sum(error <= known.bound_ns for error, known, _ in found) >= 999
    assert all(known.bound_ns <= shortest / 2 + 50_000 for _, known, shortest in found)
    assert all(known.steps == () for _, known, _ in found)


def test_messages_that_wait_make_no_error_larger_than_the_bound_without_them() -> None:
    calm, stalled = runs(2, IDLE, IDLE), runs(3, STALLED, STALLED)
    bound_ns = statistics.median(known.bound_ns for _, known, _ in calm)
    late_ns = percentile([error for error, _, _ in stalled], 0.99)
    assert late_ns <= min(bound_ns, 100_000)
    assert max(known.bound_ns for _, known, _ in calm) <= _MS


def test_over_real_sockets_through_a_proxy_that_delays() -> None:
    async def run(there: MessageDelay, back: MessageDelay, count: int) -> list[tuple[int, Clock, int]]:
        found = []
        async with node_behind_proxy(there, back, lambda: SHIFT_NS, random.Random(4)) as ask:
            for _ in range(count):
                made = await ask(EXCHANGES)
                known = estimate(made)
                found.append((abs(known.offset_ns - SHIFT_NS), known, min(one.round_trip_ns for one in made)))
        return found

    for error, known, shortest in asyncio.run(run(STALLED, LONGER, 40)):
        assert error <= known.bound_ns <= shortest / 2 + 50_000


def test_a_step_over_real_sockets_is_found_and_both_sides_are_right() -> None:
    found = step_through_a_proxy(random.Random(5), SHIFT_NS, 2_000 * _MS)
    assert found.is_right(2_000 * _MS)
    assert found.step_bound_ns < 10 * _MS


def test_a_clock_that_is_set_while_a_message_is_on_its_way_spoils_that_exchange_only() -> None:
    made = [exchange(place * _MS, 0) for place in range(4)]
    made.append(Exchange(asked_ns=4 * _MS, received_ns=4 * _MS, sent_ns=9 * _MS, answered_ns=4 * _MS + 200_000))
    made += [exchange(place * _MS, 5 * _MS) for place in range(5, 9)]
    known = estimate(made)
    assert known.offset_ns == 5 * _MS
    assert [step.by_ns for step in known.steps] == [5 * _MS]


@pytest.mark.parametrize(
    "made",
    [
        [],
        [Exchange(asked_ns=0, received_ns=-1, sent_ns=5, answered_ns=9)],
        [Exchange(asked_ns=0, received_ns=1 << 63, sent_ns=1 << 63, answered_ns=9)],
        [Exchange(asked_ns=10, received_ns=10, sent_ns=99, answered_ns=20)],
    ],
)
def test_what_no_clock_says_is_refused(made: list[Exchange]) -> None:
    with pytest.raises(ClockError):
        estimate(made)


def test_no_order_is_said_wrong_in_10000_pairs_and_most_are_said_where_they_can_be() -> None:
    found = order_pairs(random.Random(6), 10_000)
    assert found.wrong == 0
    assert found.said >= found.clear > 2_000


def test_order_on_one_node_needs_no_bound_and_between_two_it_does() -> None:
    node, other = clock(SHIFT_NS, 100), clock(0, 100)
    assert order(5, node, 6, node) is Order.BEFORE
    assert order(SHIFT_NS + 1_000, node, 1_200, other) is Order.NOT_KNOWN
    assert order(SHIFT_NS + 1_000, node, 1_203, other) is Order.BEFORE
    assert order(SHIFT_NS + 1_000, node, 0, OURS) is Order.AFTER
    assert order(0, node, 0, node) is Order.NOT_KNOWN


def test_a_drift_of_50_ppm_over_a_day_is_followed_to_a_millisecond_by_an_estimate_an_hour() -> None:
    found, ppm = day_of_drift(random.Random(7))
    assert all(error_ns <= min(_MS, bound_ns) for error_ns, bound_ns in found)
    assert abs(ppm - 50) < 0.1


def test_what_a_clock_did_between_two_estimates_is_told_apart() -> None:
    second = 10**9
    assert change_between(clock(0, 100), clock(150, 100, second)).kind is Kind.NONE
    assert change_between(clock(0, 100), clock(50_000, 100, second)).kind is Kind.DRIFT
    assert change_between(clock(0, 100), clock(2 * second, 100, second)).kind is Kind.STEP


def test_around_a_step_each_estimate_stands_for_its_side_and_the_bound_for_both() -> None:
    second = 10**9
    known = [clock(0, 100), clock(2 * second, 100, at_ns=10 * second)]
    early, late = clock_at(known, second), clock_at(known, 9 * second)
    assert (early.offset_ns, late.offset_ns) == (0, 2 * second)
    assert early.bound_ns >= 2 * second <= late.bound_ns


def test_before_the_first_and_after_the_last_estimate_the_bound_grows() -> None:
    assert clock_at([clock(7, 100, at_ns=0)], 10**9).bound_ns == 100 + 100_000
    assert clock_at([clock(7, 100, at_ns=10**9)], 0).offset_ns == 7


def test_warns_of_clocks_that_are_off_by_more_than_the_threshold() -> None:
    near, far = clock(2 * _MS, 100_000), clock(3_000 * _MS, 200_000)
    assert list(warnings({"a": near, "b": near})) == []
    assert list(warnings({"a": near, "b": far, "c": near})) == [
        "the clock of b is 3.00 s ahead of the others, to 200 µs"
    ]
    assert list(warnings({"a": clock(-50 * _MS, 10)})) == ["the clock of a is 50.0 ms behind the others, to 10 ns"]
    assert list(warnings({"a": clock(-50 * _MS, 10)}, 100 * _MS)) == []
    (text,) = warnings({"a": clock(0, 20 * _MS)})
    assert "known to 20.0 ms only" in text


def test_one_wrong_clock_of_the_client_is_said_of_the_client() -> None:
    (text,) = warnings({name: clock(3_000 * _MS, 100_000) for name in "abc"})
    assert text.startswith("the clock of this host is 3.00 s behind")


def drifting(ppm: float, seconds: float, rng: random.Random) -> Clock:
    """From exchanges before and after a question that took so long."""
    before, _ = simulated(rng, IDLE, IDLE, offset_ns=SHIFT_NS, ppm=ppm, count=EXCHANGES // 2)
    after, _ = simulated(
        rng, IDLE, IDLE, offset_ns=SHIFT_NS + round(seconds * ppm * 1e3), ppm=ppm, count=EXCHANGES // 2
    )
    gone_ns = round(seconds * 1e9)
    later = [
        Exchange(
            asked_ns=one.asked_ns + gone_ns,
            received_ns=one.received_ns + gone_ns,
            sent_ns=one.sent_ns + gone_ns,
            answered_ns=one.answered_ns + gone_ns,
        )
        for one in after
    ]
    return clock_of(before, later)


def test_a_drift_is_told_where_it_is_more_than_what_is_not_known() -> None:
    rng = random.Random(8)
    slow, fast = drifting(-80, 60, rng), drifting(60, 60, rng)
    assert slow.drift_ppm is not None
    assert fast.drift_ppm is not None
    assert abs(slow.drift_ppm + 80) < 10
    assert abs(fast.drift_ppm - 60) < 10
    assert drifting(60, 0.05, rng).drift_ppm is None
    assert all(drifting(0, 60, rng).drift_ppm is None for _ in range(200))
    texts = list(warnings({"a": slow, "b": fast}, 100 * _MS))
    assert texts[0].startswith("the clock of b gains on that of this host by ")
    assert texts[1].startswith("the clock of a loses against that of this host by ")


def test_what_became_of_a_clock_since_it_was_estimated_before() -> None:
    second = 10**9
    assert with_changes_since(None, clock(5, 100)) == clock(5, 100)
    assert with_changes_since(clock(0, 100), clock(150, 100, second)).steps == ()
    assert with_changes_since(clock(0, 100), clock(50_000, 100, second)).drift_ppm == pytest.approx(50)
    [step] = with_changes_since(clock(0, 100), clock(2 * second, 100, second)).steps
    assert (step.by_ns, step.bound_ns) == (2 * second, 200)
