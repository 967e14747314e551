"""The off-CPU buffers are emptied before they overflow, and not more often than that takes."""

from __future__ import annotations

from ingero.capture.budget.offcpu_pace import FIRST_PERIOD_NS, MAX_PERIOD_NS, MIN_PERIOD_NS, OffcpuPace

SLOTS = 32
CHEAP_NS = 10_000


def settle(per_second: int, *, cost_ns: int = CHEAP_NS) -> OffcpuPace:
    """A pace that has watched one thread with that many intervals a second for a while."""
    pace = OffcpuPace(SLOTS)
    for _ in range(100):
        intervals = per_second * pace.period_ns // 1_000_000_000
        pace.note([7] * min(SLOTS, intervals), elapsed_ns=pace.period_ns, cost_ns=cost_ns)
    return pace


def test_a_busy_thread_fills_a_third_of_its_buffer_between_two_readings() -> None:
    intervals = 400 * settle(400).period_ns / 1e9
    assert 0.2 * SLOTS < intervals < 0.5 * SLOTS


def test_idle_threads_are_read_once_a_second() -> None:
    assert settle(0).period_ns == MAX_PERIOD_NS


def test_a_buffer_that_overflowed_is_read_sooner() -> None:
    pace = settle(10)
    before = pace.period_ns
    pace.note([7] * SLOTS, elapsed_ns=before, cost_ns=CHEAP_NS)
    assert pace.period_ns == before // 3


def test_the_fullest_buffer_decides_whatever_the_others_hold() -> None:
    crowd, alone = OffcpuPace(SLOTS), OffcpuPace(SLOTS)
    crowd.note([1] * 30 + list(range(100, 400)), elapsed_ns=FIRST_PERIOD_NS, cost_ns=CHEAP_NS)
    alone.note([1] * 30, elapsed_ns=FIRST_PERIOD_NS, cost_ns=CHEAP_NS)
    assert crowd.period_ns == alone.period_ns


def test_the_period_has_a_lower_end() -> None:
    assert settle(100_000).period_ns == MIN_PERIOD_NS


def test_an_expensive_reading_stays_rare_though_buffers_overflow() -> None:
    cost_ns = 5_000_000
    assert cost_ns / settle(100_000, cost_ns=cost_ns).period_ns < 0.02


def test_after_a_restart_reading_is_as_frequent_as_at_the_beginning_unless_it_is_expensive() -> None:
    cheap, expensive, busy = settle(0), settle(0, cost_ns=5_000_000), settle(100_000)
    for pace in (cheap, expensive, busy):
        pace.restart()
    assert cheap.period_ns == FIRST_PERIOD_NS
    assert expensive.period_ns > 5 * FIRST_PERIOD_NS
    assert busy.period_ns == MIN_PERIOD_NS
