"""The lines of code at which a lane's time was lost: where its device was left empty, and where it was picked up late.

An epoch begins where one drain returns and ends where the next one does: the calls that were recorded say which lines
these are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingero.diagnose.accounting import LaneAccount
from ingero.serve.stack_lines import where_text
from ingero.store.call_stacks import StackBook
from ingero.units import format_count, format_ns

_TOP = 2
_SHOWN_SHARE = 0.005  # of the wall time; less says nothing
_NO_STACK = 0


@dataclass(frozen=True, slots=True)
class LossAt:
    """Time lost at one line, and the number of epochs."""

    where: str
    ns: int
    epochs: int


@dataclass(frozen=True, slots=True)
class DrainLines:
    """empty: by the line after whose drain nothing was enqueued; late: by the line that drained. Both most first."""

    empty: tuple[LossAt, ...]
    late: tuple[LossAt, ...]
    epochs: int
    wall_ns: int

    def empty_lines(self) -> Iterator[str]:
        """Text for below the time that the device was empty."""
        return self._lines(self.empty, "after the sync at")

    def late_lines(self) -> Iterator[str]:
        """Text for below the time that passed until a result was picked up."""
        return self._lines(self.late, "in the sync at")

    def _lines(self, losses: tuple[LossAt, ...], place: str) -> Iterator[str]:
        for loss in losses[:_TOP]:
            if loss.ns > self.wall_ns * _SHOWN_SHARE:
                epochs = f"{format_count(loss.epochs)} of {format_count(self.epochs)} sync intervals"
                yield f"      {format_ns(loss.ns):>10}  {place} {loss.where}  [{epochs}]"


def drain_lines(
    own: npt.NDArray[np.void], lane: LaneAccount, stack_at: Mapping[int, int], book: StackBook
) -> DrainLines:
    """Where a lane lost its time. own: its epochs. stack_at: return of a recorded drain -> the hash of its stack."""
    book.read(stack_at.values())
    return DrainLines(
        empty=_losses(own["a_ns"], own["e_ns"], stack_at, book),
        late=_losses(own["b_ns"], own["p_ns"], stack_at, book),
        epochs=len(own),
        wall_ns=lane.wall_ns,
    )


def _losses(
    times: npt.NDArray[np.int64], lost_ns: npt.NDArray[np.int64], stack_at: Mapping[int, int], book: StackBook
) -> tuple[LossAt, ...]:
    spent, epochs = Counter[str](), Counter[str]()
    for at, ns in zip(times.tolist(), lost_ns.tolist(), strict=True):
        stack = book.of(stack_at.get(at, _NO_STACK))
        if stack:
            where = where_text(stack)
            spent[where] += ns
            epochs[where] += 1
    return tuple(LossAt(where, ns, epochs[where]) for where, ns in spent.most_common())
