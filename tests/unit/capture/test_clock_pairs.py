"""A long recording converts times as fast as a short one."""

from __future__ import annotations

import numpy as np

from ingero.capture.loop.clocks import WallClock

UNIX_NS = 1_790_000_000_000_000_001  # no float holds it


def test_only_the_pairs_of_the_last_hour_are_kept() -> None:
    clock = WallClock()
    for number in range(5000):
        clock.add_pair(number * 10, UNIX_NS + number * 11)
    assert clock.unix_ns_of(4999 * 10) == UNIX_NS + 4999 * 11
    assert clock.unix_ns_of(0) - UNIX_NS > 4000  # long ago: the oldest offset that is still known


def test_times_keep_their_shape() -> None:
    clock = WallClock()
    clock.add_pair(0, UNIX_NS)
    assert clock.unix_ns(np.zeros((3, 8), np.uint64)).shape == (3, 8)
