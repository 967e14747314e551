"""Which time the sums of one reading stand for."""

from __future__ import annotations

from typing import NamedTuple

from ingero.store.writing.tables import Column
from ingero.units import SECOND_NS

_LATE_NS = 20_000_000  # by which a second ends, as the agent is woken


class Period(NamedTuple):
    """Its begin (unix ns), and how long it lasted."""

    start_ns: int
    elapsed_ns: int

    @property
    def end_ns(self) -> int:
        """Unix ns."""
        return self.start_ns + self.elapsed_ns

    @property
    def elapsed_s(self) -> float:
        """How long it lasted."""
        return self.elapsed_ns / SECOND_NS

    def columns(self) -> dict[str, Column]:
        """What rows of sums say of it: never an end that is yet to come, and of a second what takes no byte."""
        is_second = SECOND_NS <= self.elapsed_ns <= SECOND_NS + _LATE_NS
        return {"start_ns": self.start_ns, "period_s": 1 if is_second else self.elapsed_s}


def period_until(end_ns: int, elapsed_ns: int) -> Period:
    """What ended then and lasted so long."""
    return Period(end_ns - elapsed_ns, elapsed_ns)
