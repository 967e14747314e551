"""An open call keeps the beginning that it was first told with, and how long its thread was awake before."""

from __future__ import annotations

import numpy as np

from ingero.capture.loop.clocks import WallClock
from ingero.capture.records.open_calls import AwakeTime, InFlightSince
from ingero.events import STATES

YEAR_2026_NS = 1_790_000_000_000_000_000


def test_a_call_that_stays_open_keeps_its_beginning_though_the_clock_drifts() -> None:
    clock = WallClock()
    clock.add_pair(0, YEAR_2026_NS)
    since = InFlightSince(clock)
    first = since.of([(7, 5_000)])
    clock.add_pair(10_000, YEAR_2026_NS + 10_500)
    assert clock.unix_ns_of(5_000) != first[0], "the test itself must move the clock"
    assert since.of([(7, 5_000)]) == first


def test_the_next_call_of_a_thread_has_a_beginning_of_its_own() -> None:
    clock = WallClock()
    clock.add_pair(0, YEAR_2026_NS)
    since = InFlightSince(clock)
    since.of([(7, 5_000)])
    assert since.of([(7, 6_000), (8, 5_000)]) == [YEAR_2026_NS + 6_000, YEAR_2026_NS + 5_000]


def test_what_has_ended_is_forgotten() -> None:
    clock = WallClock()
    clock.add_pair(0, YEAR_2026_NS)
    since = InFlightSince(clock)
    since.of([(7, 5_000)])
    since.of([])
    assert not since._begin_ns


def test_time_awake_counts_since_the_call_was_first_seen() -> None:
    """A thread that runs, or could, is awake; asleep it is not."""
    clocks, awake = np.zeros((1, len(STATES)), np.uint64), AwakeTime()
    clocks[0, STATES.index("run")] = 7
    assert awake.of([(7, 5_000)], clocks) == [0]
    for name in ("run", "runq", "throttled", "sleep"):
        clocks[0, STATES.index(name)] += np.uint64(10)
    assert awake.of([(7, 5_000)], clocks) == [30]
    assert awake.of([(7, 9_000)], clocks) == [0]
