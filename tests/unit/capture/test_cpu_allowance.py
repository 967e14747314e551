"""A share of a core is kept to in the long run, and what was saved may be spent at once."""

from __future__ import annotations

import pytest

from ingero.capture.budget.cpu_allowance import CpuAllowance


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_work_within_what_was_saved_needs_no_pause() -> None:
    clock = Clock()
    allowance = CpuAllowance(0.02, most_s=1.2, clock=clock)
    pauses = []
    for _ in range(6):
        clock.now_s += 1
        pauses.append(allowance.spend(0.1))
    assert pauses == [0.0] * 6


def test_work_beyond_it_is_paused_for_until_the_share_is_kept() -> None:
    clock = Clock()
    allowance = CpuAllowance(0.02, most_s=1.2, clock=clock)
    spent_s = 0.0
    for _ in range(200):
        clock.now_s += 1 + allowance.spend(0.1)
        spent_s += 0.1
    assert spent_s / clock.now_s == pytest.approx(0.02, rel=0.1)


def test_no_more_is_saved_than_the_most() -> None:
    clock = Clock()
    allowance = CpuAllowance(0.02, most_s=1.2, clock=clock)
    clock.now_s += 86_400
    assert allowance.spend(2.2) == pytest.approx(1.0 / 0.02)


def test_half_is_left_until_it_is_spent_and_again_when_it_was_saved() -> None:
    clock = Clock()
    allowance = CpuAllowance(0.02, most_s=1.2, clock=clock)
    assert allowance.is_half_left
    allowance.spend(0.1)
    assert not allowance.is_half_left
    clock.now_s += 5.1
    assert allowance.is_half_left
