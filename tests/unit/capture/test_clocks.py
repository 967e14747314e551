"""Wall-clock times follow the clock pairs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingero.capture.loop.clocks import WallClock, read_pair

YEAR_2026_NS = 1_790_000_000_000_000_000


def clock(*pairs: tuple[int, int]) -> WallClock:
    made = WallClock()
    for mono_ns, unix_ns in pairs:
        made.add_pair(mono_ns, unix_ns)
    return made


@given(st.integers(0, 10**16), st.integers(0, 10**16))
def test_one_pair_shifts_every_time_exactly(pair_mono_ns: int, mono_ns: int) -> None:
    assert clock((pair_mono_ns, YEAR_2026_NS)).unix_ns_of(mono_ns) == YEAR_2026_NS + mono_ns - pair_mono_ns


def test_between_two_pairs_a_step_is_spread_evenly() -> None:
    stepped = clock((0, YEAR_2026_NS), (10_000, YEAR_2026_NS + 10_000 + 500))
    assert stepped.unix_ns_of(0) == YEAR_2026_NS
    assert stepped.unix_ns_of(5_000) == YEAR_2026_NS + 5_000 + 250
    assert stepped.unix_ns_of(10_000) == YEAR_2026_NS + 10_500


def test_beyond_the_last_pair_its_offset_holds() -> None:
    stepped = clock((0, YEAR_2026_NS), (10_000, YEAR_2026_NS + 10_500))
    assert stepped.unix_ns_of(20_000) == YEAR_2026_NS + 20_500


def test_order_is_kept_across_a_step_forward() -> None:
    stepped = clock((0, YEAR_2026_NS), (1_000_000, YEAR_2026_NS + 1_000_000 + 10**9))
    times = stepped.unix_ns(np.arange(0, 2_000_000, 1_000, dtype=np.uint64))
    assert (np.diff(times) > 0).all()


def test_a_clock_set_back_does_not_turn_the_recording_back() -> None:
    hour_ns, ten_s = 3_600 * 10**9, 10**10
    stepped = clock(
        (0, YEAR_2026_NS), (ten_s, YEAR_2026_NS + ten_s - hour_ns), (2 * ten_s, YEAR_2026_NS + 2 * ten_s - hour_ns)
    )
    assert stepped.unix_ns_of(ten_s // 2) == YEAR_2026_NS + ten_s // 2
    assert stepped.unix_ns_of(3 * ten_s) == YEAR_2026_NS + 3 * ten_s


def test_a_clock_set_back_and_forward_again_leaves_no_trace() -> None:
    hour_ns, ten_s = 3_600 * 10**9, 10**10
    stepped = clock((0, YEAR_2026_NS), (ten_s, YEAR_2026_NS + ten_s - hour_ns), (2 * ten_s, YEAR_2026_NS + 2 * ten_s))
    assert stepped.unix_ns_of(3 * ten_s) == YEAR_2026_NS + 3 * ten_s


def test_a_slew_backwards_is_followed() -> None:
    slewed = clock((0, YEAR_2026_NS), (10**10, YEAR_2026_NS + 10**10 - 5_000_000))
    assert slewed.unix_ns_of(2 * 10**10) == YEAR_2026_NS + 2 * 10**10 - 5_000_000


def test_a_pair_is_one_moment_on_both_clocks() -> None:
    first_mono, first_unix = read_pair()
    second_mono, second_unix = read_pair()
    assert abs((second_unix - first_unix) - (second_mono - first_mono)) < 50_000_000
