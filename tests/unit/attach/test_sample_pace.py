"""How often each CPU is sampled, and what a sample stands for."""

from __future__ import annotations

import numpy as np
import pytest

from ingero.attach.sample_pace import MAX_HZ, MIN_HZ, SamplePace

_S = 1_000_000_000
_NONE = np.zeros(0, np.int64)


def seconds(pace: SamplePace, at_work: float, count: int, *, first: int = 1) -> list[int]:
    """The rates chosen while so many CPUs run nothing but targets."""
    rates = []
    for second in range(first, first + count):
        hz = 1e9 / pace.period_ns
        pace.periods_ns(np.full(round(at_work * hz), (second - 1) * _S + 1))
        pace.choose(now_ns=second * _S, elapsed_ns=_S)
        rates.append(round(1e9 / pace.period_ns))
    return rates


@pytest.mark.parametrize("cpus", [1, 2, 8, 16])
def test_few_cpus_are_sampled_as_often_as_there_is(cpus: int) -> None:
    pace = SamplePace(cpus)
    assert round(1e9 / pace.period_ns) == MAX_HZ
    assert seconds(pace, cpus, 3) == [MAX_HZ] * 3


def test_a_large_machine_is_sampled_by_how_many_of_its_cpus_run_targets() -> None:
    pace = SamplePace(32)
    assert round(1e9 / pace.period_ns) == 48  # all of them may
    assert seconds(pace, 4, 2) == [MAX_HZ] * 2
    assert seconds(pace, 32, 3, first=3) == [48] * 3
    assert seconds(pace, 0, 1, first=6) == [MAX_HZ]


@pytest.mark.parametrize("cpus", [2, 16, 64, 128, 300, 1000])
def test_the_samples_of_a_second_are_bounded_whatever_begins(cpus: int) -> None:
    pace = SamplePace(cpus)
    seconds(pace, 0, 3)
    assert cpus * round(1e9 / pace.period_ns) <= max(4 * 16 * MAX_HZ, cpus * MIN_HZ)
    seconds(pace, cpus, 2, first=4)
    assert cpus * round(1e9 / pace.period_ns) <= max(16 * MAX_HZ, cpus * MIN_HZ)


def test_a_sample_stands_for_the_period_in_which_it_was_taken() -> None:
    pace = SamplePace(32)
    slow = pace.period_ns
    seconds(pace, 4, 1)
    fast = pace.period_ns
    assert fast < slow
    assert pace.periods_ns(np.array([5, _S - 1, _S, 2 * _S])).tolist() == [slow, slow, fast, fast]
    assert pace.periods_ns(_NONE).tolist() == []


def test_a_second_that_was_longer_is_no_busier_one() -> None:
    pace = SamplePace(32)
    pace.periods_ns(np.full(48 * 8 * 3, 1))  # eight CPUs for three seconds
    pace.choose(now_ns=3 * _S, elapsed_ns=3 * _S)
    assert round(1e9 / pace.period_ns) == MAX_HZ
