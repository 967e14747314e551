"""How often the device was drained in a second, and how the time from drain to drain divides."""

from __future__ import annotations

from dataclasses import dataclass

from ingero.store.tables import EPOCHS, Rows

_PARTS = tuple(EPOCHS.columns.index(column) for column in ("e_ns", "x_ns", "p_ns"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSums:
    """count: epochs. Summed over streams: device empty, busy, or done and picked up late."""

    count: int = 0
    empty_ns: int = 0
    busy_ns: int = 0
    late_ns: int = 0

    def plus(self, epochs: Rows) -> DrainSums:
        """With more epochs, rows of `tables.EPOCHS`; a part that is not known adds nothing."""
        empty, busy, late = (sum(ns for ns in epochs.column(part) if isinstance(ns, int)) for part in _PARTS)
        return DrainSums(
            count=self.count + len(epochs),
            empty_ns=self.empty_ns + empty,
            busy_ns=self.busy_ns + busy,
            late_ns=self.late_ns + late,
        )
