"""How many samples are more than chance."""

from __future__ import annotations

import numpy as np
import pytest

from ingero.diagnose.cases.host_cpu_time import is_more


@pytest.mark.parametrize(
    ("count", "usual", "scale", "expected"),
    [
        (9, 0, 1.2, True),
        (8, 1, 1.2, False),  # of a labeled run: nothing had changed
        (11, 1, 1.7, False),  # of another
        (45, 2, 3.8, True),
        (20, 0, 3.8, True),
        (19, 0, 3.8, False),
        (3000, 1000, 2.0, True),
        (2400, 1000, 2.0, False),  # beyond chance, but too little
        (5, 0, 0.0, True),  # the part that lost is nothing beside the reference, and has them all
    ],
)
def test_what_two_counts_may_differ_by(count: int, usual: int, scale: float, *, expected: bool) -> None:
    assert is_more(count, usual, scale) is expected


def test_equal_rates_are_told_apart_in_one_of_a_hundred_at_most() -> None:
    random, runs, scale = np.random.default_rng(1), 4000, 1.7
    for usual in (1, 5, 20):
        pairs = zip(random.poisson(usual * scale, runs).tolist(), random.poisson(usual, runs).tolist(), strict=True)
        assert sum(is_more(now, before, scale) for now, before in pairs) <= 0.012 * runs
