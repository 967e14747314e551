"""Counts of steps of programs, and how they are known; of sync intervals where no step is known."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ingero.units import format_counted


class How(enum.Enum):
    """How the steps of a process are known; the values of column `how` in view `steps`.

    SYNC: by GPU syncs alone; these are sync intervals, which need not be steps. BOTH: by repetition, and syncs (of a
    profile: the program's own marks) say the same.
    """

    REPETITION = "repetition"
    SYNC = "sync"
    BOTH = "both"
    USER = "user"

    @classmethod
    def of(cls, text: str) -> How:
        """The value for a recording's text; unknown text may come from a foreign file."""
        return next((how for how in cls if how.value == text), cls.REPETITION)

    @property
    def noun(self) -> str:
        """The noun for one of them."""
        return "sync interval" if self is How.SYNC else "step"

    @property
    def words(self) -> str:
        """How they were found, as text after their number; empty for sync intervals."""
        return _WORDS[self]


_WORDS: Mapping[How, str] = {
    How.REPETITION: "found by repetition",
    How.SYNC: "",
    How.BOTH: "found by repetition",
    How.USER: "marked by the program",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCount:
    """Counts of one process in some time. synced: steps in which their stream was synced."""

    steps: int = 0
    synced: int = 0
    sync_intervals: int = 0

    @property
    def how(self) -> How:
        """How the steps are known."""
        if not self.steps:
            return How.SYNC
        return How.BOTH if 2 * self.synced > self.steps else How.REPETITION

    @property
    def count(self) -> int:
        """The number of steps, or of sync intervals if no step is known."""
        return self.steps or self.sync_intervals

    def plus(self, other: StepCount) -> StepCount:
        """The sum of both counts."""
        return StepCount(
            steps=self.steps + other.steps,
            synced=self.synced + other.synced,
            sync_intervals=self.sync_intervals + other.sync_intervals,
        )


def counts_text(counts: Iterable[StepCount]) -> str:
    """The steps of several processes: `1,234 steps`, `20 sync intervals`, or both, of processes with and without steps.

    Sync intervals of processes with steps are not counted: they are parts of steps, or ends of some.
    """
    total: dict[str, int] = {}
    for count in counts:
        if count.count:
            total[count.how.noun] = total.get(count.how.noun, 0) + count.count
    return ", ".join(format_counted(total[noun], noun) for noun in sorted(total, reverse=True)) or "no steps"
