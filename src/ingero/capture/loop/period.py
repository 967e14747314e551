"""The period that the sums of one reading cover."""

from __future__ import annotations

from typing import NamedTuple

from ingero.store.writing.tables import Column
from ingero.units import SECOND_NS

_LATE_NS = 20_000_000  # by which a second ends, as the agent is woken


class Period(NamedTuple):
    """A period: begin (unix ns) and length (ns)."""

    start_ns: int
    elapsed_ns: int

    @property
    def end_ns(self) -> int:
        """The end of the period, unix ns."""
        return self.start_ns + self.elapsed_ns

    @property
    def elapsed_s(self) -> float:
        """The length of the period, s."""
        return self.elapsed_ns / SECOND_NS

    def columns(self) -> dict[str, Column]:
        """The time columns of rows of sums: never an end in the future; an exact second takes no byte."""
        is_second = SECOND_NS <= self.elapsed_ns <= SECOND_NS + _LATE_NS
        return {"start_ns": self.start_ns, "period_s": 1 if is_second else self.elapsed_s}


def period_until(end_ns: int, elapsed_ns: int) -> Period:
    """The period with this end (unix ns) and length (ns)."""
    return Period(end_ns - elapsed_ns, elapsed_ns)
