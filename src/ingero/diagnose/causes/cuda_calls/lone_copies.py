"""Copies with nothing else queued: the call's duration is that of its bytes, without a wait for earlier work."""

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
    """Lone copies of a case. ns_per_byte: mean over the whole case, a lower bound."""

    ns_per_byte: float
    size_bytes: float


def lone_copies(case: Case, copies: OpChange, *, from_bytes: int) -> LoneCopies | None:
    """A call's copies of at least `from_bytes` with nothing else queued; None where there are none.

    A link that becomes slower stays so for a while, and a case may begin before or end after that. In a run of such
    copies no byte took less than in the fastest of them: the run that proves most is when the link was slower. All
    other copies are taken to be as fast as the fastest.
    from_bytes: the duration of smaller copies says more about the call than about the link.
    """
    if case.kind is not FindingKind.INCIDENT:
        return None
    intervals = case.sync_intervals
    is_copy = (intervals["source"] == copies.totals.source) & (intervals["op"] == copies.totals.op)
    is_alone = (intervals["first_launch_ns"] >= intervals["sync_start_ns"]) & (intervals["flags"] & int(_UNKNOWN) == 0)
    intervals = intervals[is_copy & is_alone & (intervals["bytes"] >= from_bytes)]
    if not len(intervals):
        return None
    return LoneCopies(
        _highest_mean_of_lowest(intervals["busy_ns"] / intervals["bytes"], intervals["bytes"]),
        case.scale * float(intervals["bytes"].sum()),
    )


def _highest_mean_of_lowest(paces: Array, sizes: Array) -> float:
    """The mean of the paces, weighted by size, with each pace as low as the lowest of its run, or of all.

    The run has at least MIN_SYNC_INTERVALS consecutive copies, and is the one with the highest mean.
    """
    lowest = float(paces.min())
    sums = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    most = 0.0
    rows: list[tuple[int, float]] = []  # open runs: (start, lowest pace), paces ascending
    for at, pace in enumerate([*paces.tolist(), lowest]):
        begin = at
        while rows and rows[-1][1] >= pace:
            begin, least = rows.pop()
            if at - begin >= MIN_SYNC_INTERVALS:
                most = max(most, (least - lowest) * (sums[at] - sums[begin]))
        rows.append((begin, pace))
    return lowest + most / float(sums[-1])
