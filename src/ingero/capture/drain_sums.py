"""How often the device was drained in a second, and how the time from drain to drain divides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ingero.events import EpochFlag
from ingero.store.tables import EPOCHS, Rows

_GPU = tuple(EPOCHS.columns.index(column) for column in ("e_ns", "x_ns"))
_LATE, _FLAGS = EPOCHS.columns.index("p_ns"), EPOCHS.columns.index("flags")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainSums:
    """count: epochs. Summed over streams: device empty, busy, or done and picked up late.

    Where launches were not traced neither empty nor busy is known, and nothing is added to them.
    """

    count: int = 0
    empty_ns: int = 0
    busy_ns: int = 0
    late_ns: int = 0

    def plus(self, epochs: Rows) -> DrainSums:
        """With more epochs, rows of `tables.EPOCHS`; a part that is not known adds nothing."""
        seen = [not int(flags or 0) & EpochFlag.ENQUEUES_UNSEEN for flags in epochs.column(_FLAGS)]
        empty, busy = (
            _sum(ns for ns, is_seen in zip(epochs.column(part), seen, strict=True) if is_seen) for part in _GPU
        )
        late = _sum(epochs.column(_LATE))
        return DrainSums(
            count=self.count + len(epochs),
            empty_ns=self.empty_ns + empty,
            busy_ns=self.busy_ns + busy,
            late_ns=self.late_ns + late,
        )


def _sum(parts: Iterable[object]) -> int:
    return sum(ns for ns in parts if isinstance(ns, int))
