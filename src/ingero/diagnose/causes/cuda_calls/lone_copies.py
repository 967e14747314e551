"""Copies that found nothing else queued: what such a call took, its bytes took; it did not wait for earlier work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case, OpChange
from ingero.diagnose.findings import FindingKind
from ingero.diagnose.lost_time.time_ranges import MIN_SYNC_INTERVALS
from ingero.events import SyncIntervalFlag

Array = np.ndarray[Any, np.dtype[Any]]

_UNKNOWN = (  # what else was queued, or when the bytes had arrived
    SyncIntervalFlag.ENQUEUES_UNSEEN
    | SyncIntervalFlag.FIRST_UNKNOWN
    | SyncIntervalFlag.PARTIAL
    | SyncIntervalFlag.BEFORE_COPY
    | SyncIntervalFlag.ESTIMATED
)


@dataclass(frozen=True, slots=True)
class LoneCopies:
    """Those of a case. ns_per_byte: what a byte took over the whole case, on average and at the least."""

    ns_per_byte: float
    size_bytes: float


def lone_copies(case: Case, copies: OpChange, *, from_bytes: int) -> LoneCopies | None:
    """The copies by one call that found nothing else queued, of this size or larger; None where there are none.

    A link that becomes slower stays so for a while, and a case may begin before that, or end after. In a row of such
    copies none took less for a byte than the fastest of them: the row that proves most is when the link was slower.
    All others of the case are taken for as fast as the fastest.

    from_bytes: smaller copies tell more of the call than of the link.
    """
    if case.kind is not FindingKind.INCIDENT:
        return None
    mine = case.sync_intervals
    is_copy = (mine["source"] == copies.totals.source) & (mine["op"] == copies.totals.op)
    is_alone = (mine["first_launch_ns"] >= mine["sync_start_ns"]) & (mine["flags"] & int(_UNKNOWN) == 0)
    mine = mine[is_copy & is_alone & (mine["bytes"] >= from_bytes)]
    if not len(mine):
        return None
    return LoneCopies(
        _least_mean(mine["busy_ns"] / mine["bytes"], mine["bytes"]), case.scale * float(mine["bytes"].sum())
    )


def _least_mean(paces: Array, sizes: Array) -> float:
    """The mean of the paces, weighed by the sizes, with each as low as the lowest of the row it is in, or of all.

    There is one row, of at least MIN_SYNC_INTERVALS in sequence: the one that makes the mean the highest.
    """
    lowest = float(paces.min())
    sums = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    most = 0.0
    rows: list[tuple[int, float]] = []  # that are not over yet: where each began, and its lowest pace; these rise
    for at, pace in enumerate([*paces.tolist(), lowest]):
        begin = at
        while rows and rows[-1][1] >= pace:
            begin, least = rows.pop()
            if at - begin >= MIN_SYNC_INTERVALS:
                most = max(most, (least - lowest) * (sums[at] - sums[begin]))
        rows.append((begin, pace))
    return lowest + most / float(sums[-1])
