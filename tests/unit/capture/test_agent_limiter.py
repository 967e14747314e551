"""The agent records less while it needs too much CPU time, and more again when it does not."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ingero import given_up
from ingero.capture.budget.agent_limiter import AGENT_LEVELS, MAX_CALM_S, SAVED_SECONDS, AgentLimiter, decide

BUDGET = 0.05


def levels(ratios: Iterable[float]) -> list[int]:
    agent_limiter, found = AgentLimiter(), []
    for at_s, ratio in enumerate(ratios):
        agent_limiter = decide(agent_limiter, ratio, float(at_s), BUDGET)
        found.append(agent_limiter.level)
    return found


def test_within_the_budget_nothing_changes() -> None:
    assert set(levels([0.049] * 100)) == {0}


def test_one_busy_second_changes_nothing() -> None:
    assert set(levels([0.01, 0.4, *[0.01] * 50])) == {0}


def test_learning_a_program_takes_nothing_away() -> None:
    """As measured on an H100: a PyTorch loop, and the same through torch.compile."""
    assert set(levels([0.11, 0.17, 0.15, 0.07, 0.055, 0.066, 0.11, *[0.05] * 100])) == {0}
    assert set(levels([0.91, 0.31, 0.31, 0.61, 0.44, 0.3, 0.09, *[0.049] * 100])) == {0}


def test_on_average_the_budget_is_kept() -> None:
    """Whatever it would need at each level, what it uses beyond the budget is the savings of one minute."""
    agent_limiter, used_s = AgentLimiter(), 0.0
    for at_s in range(600):
        ratio = (0.4, 0.12, 0.04, 0.02)[agent_limiter.level]
        used_s += ratio
        agent_limiter = decide(agent_limiter, ratio, float(at_s), BUDGET)
        assert used_s <= BUDGET * (at_s + 1 + SAVED_SECONDS) + 0.4 * 5 * 2


def test_a_lasting_excess_goes_down_level_by_level_and_no_further() -> None:
    found = levels([0.2] * 80)
    assert sorted(set(found)) == list(range(len(AGENT_LEVELS)))
    assert found == sorted(found)


def test_levels_come_back_one_by_one_when_the_agent_is_idle() -> None:
    found = levels([0.2] * 60 + [0.01] * 200)
    assert found[59] == len(AGENT_LEVELS) - 1
    assert found[-1] == 0


def test_a_level_that_just_fits_the_budget_is_kept() -> None:
    assert levels([0.2] * 24 + [0.04] * 300)[-1] > 0


def test_a_load_that_needs_a_level_is_tried_ever_less_often() -> None:
    agent_limiter, changes = AgentLimiter(), 0
    for at_s in range(3600):
        before = agent_limiter.level
        agent_limiter = decide(agent_limiter, 0.08 if before == 0 else 0.02, float(at_s), BUDGET)
        changes += agent_limiter.level != before
    assert changes <= 2 * (3600 / MAX_CALM_S + 6)


@pytest.mark.parametrize("level", range(1, len(AGENT_LEVELS)))
def test_each_level_takes_fewer_records_and_says_so(level: int) -> None:
    assert AGENT_LEVELS[level].records_ratio < AGENT_LEVELS[level - 1].records_ratio
    assert AGENT_LEVELS[level].drain_ns >= AGENT_LEVELS[level - 1].drain_ns
    assert f"{AGENT_LEVELS[level].records_ratio:.0%} " in given_up.BY_CODE[AGENT_LEVELS[level].code].text


def test_stacks_go_with_the_second_cut_of_the_records() -> None:
    assert [level.takes_stacks for level in AGENT_LEVELS] == [True, True, False, False]
