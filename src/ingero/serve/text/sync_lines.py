"""The code lines at which a stream lost time: where its GPU was left idle, and where syncs returned late.

A sync interval begins where one sync returns and ends where the next one does: the calls that were recorded say which
lines these are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingero.diagnose.accounting import StreamBreakdown
from ingero.serve.text.stack_lines import where_text
from ingero.store.call_stacks import StackBook
from ingero.units import format_count, format_ns

_TOP = 2
_SHOWN_SHARE = 0.005  # of the wall time; less says nothing
_NO_STACK = 0


@dataclass(frozen=True, slots=True)
class DropAt:
    """Time lost at one line, and the number of sync intervals."""

    where: str
    ns: int
    sync_intervals: int


@dataclass(frozen=True, slots=True)
class SyncLines:
    """Lost time by line, most first. empty: line after whose sync nothing was enqueued; late: line that synced."""

    idle: tuple[DropAt, ...]
    return_delay: tuple[DropAt, ...]
    sync_intervals: int
    wall_ns: int

    def empty_lines(self) -> Iterator[str]:
        """Text below the GPU idle time."""
        return self._lines(self.idle, "after the sync at")

    def late_lines(self) -> Iterator[str]:
        """Text below the sync return delay."""
        return self._lines(self.return_delay, "in the sync at")

    def _lines(self, drops: tuple[DropAt, ...], place: str) -> Iterator[str]:
        for drop in drops[:_TOP]:
            if drop.ns > self.wall_ns * _SHOWN_SHARE:
                sync_intervals = (
                    f"{format_count(drop.sync_intervals)} of {format_count(self.sync_intervals)} sync intervals"
                )
                yield f"      {format_ns(drop.ns):>10}  {place} {drop.where}  [{sync_intervals}]"


def sync_lines(
    own: npt.NDArray[np.void], gpu_stream: StreamBreakdown, stack_at: Mapping[int, int], book: StackBook
) -> SyncLines:
    """Where a stream lost its time. own: its sync intervals. stack_at: return of a recorded sync -> stack hash."""
    book.read(stack_at.values())
    return SyncLines(
        idle=_drops(own["prev_sync_end_ns"], own["idle_ns"], stack_at, book),
        return_delay=_drops(own["sync_end_ns"], own["return_delay_ns"], stack_at, book),
        sync_intervals=len(own),
        wall_ns=gpu_stream.wall_ns,
    )


def _drops(
    times: npt.NDArray[np.int64], lost_ns: npt.NDArray[np.int64], stack_at: Mapping[int, int], book: StackBook
) -> tuple[DropAt, ...]:
    spent, sync_intervals = Counter[str](), Counter[str]()
    for at, ns in zip(times.tolist(), lost_ns.tolist(), strict=True):
        stack = book.of(stack_at.get(at, _NO_STACK))
        if stack:
            where = where_text(stack)
            spent[where] += ns
            sync_intervals[where] += 1
    return tuple(DropAt(where, ns, sync_intervals[where]) for where, ns in spent.most_common())
