"""Ranks that train together: which lost time at the same time, and which had more, or something else, to do then.

Whoever waits in a collective waits on its GPU. What keeps it waiting may be no loss of the rank that comes late: longer
sequences, an evaluation that one rank makes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.findings import Bucket, CodeLine, Part
from ingero.diagnose.lost_time.buckets import DEVICE
from ingero.diagnose.lost_time.time_ranges import excess_ns
from ingero.diagnose.samples.stack_samples import RUN, spent, stays
from ingero.store.records import Process, Window
from ingero.units import format_ns, format_number

Array = np.ndarray[Any, np.dtype[Any]]

MIN_OVERLAP = 0.5  # of the shorter of the two time ranges
_MOSTLY = 0.5  # of a rank's wait for its GPU lies in other work of the peer; less, and the wait has another reason
_MOST_OF_IT = 0.8  # of the lost time: the sync intervals that hold it are the waits
_USUAL = 0.1  # of the peer's time at best, before a kind of step is usual there
_LIFT = 1.5  # times as often in the waits as at any time
_MORE = 1.3  # launches of a step against the best: less is the spread of batches
_AS_EVER = 1.1
_MOST_WAITS = 8  # the longest, that are asked where the peer was


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyPeer:
    """A rank that kept another one waiting. ns: of that one's wait. why: how that is known. doing: in words."""

    process: Process
    ns: int
    doing: str
    why: str
    line: CodeLine | None = None


def peers(case: Case) -> list[Case]:
    """The cases of the ranks that share a communicator with this one, at the same time, of the same kind."""
    mine = case.evidence.peers(case.process.process)
    theirs = [one for one in case.siblings if one.process.process in mine and one.kind is case.kind]
    return [one for one in theirs if _overlap(case, one) >= MIN_OVERLAP]


def device_ns(case: Case) -> int:
    """Lost waiting for its GPU."""
    return case.buckets.get(Bucket(Part.GPU, DEVICE), 0)


def busy_peer(case: Case) -> BusyPeer | None:
    """The peer whose other work, or more of it, most of the wait of this rank lies in."""
    found = (_busy(case, number) for number in sorted(case.evidence.peers(case.process.process)))
    return max((one for one in found if one), key=lambda one: one.ns, default=None)


def _busy(case: Case, number: int) -> BusyPeer | None:
    process, stream = case.evidence.processes.get(number), case.evidence.gpu_streams.get(number)
    before = [case.evidence.gpu_stream_in(one, number) for one in case.baselines] if stream is not None else []
    usual: Array = np.concatenate(before) if before else np.zeros(0)
    if process is None or stream is None or not len(usual):
        return None
    now = case.evidence.gpu_stream_in(case.window, number)
    more, own = _growth(now, usual), _own_growth(case)
    if more >= _MORE and own <= _AS_EVER:
        return BusyPeer(
            process=process,
            ns=device_ns(case),
            doing=f"launched {format_number(more, 2)}x as many kernels per step as in the baseline",
            why=f"the waiting rank launched {format_number(own, 2)}x as many as in the baseline",
        )
    waits = _waits(case)
    other = stream[np.isin(stream["step_type"], _other_types(case, stream, usual, waits))]
    lost_ns = sum(lost for _, lost in waits)
    kept_ns = sum(min(lost, _shared_ns(window, other)) for window, lost in waits)
    if not len(other) or kept_ns < _MOSTLY * lost_ns:
        return None
    return BusyPeer(
        process=process,
        ns=int(kept_ns * device_ns(case) / max(lost_ns, 1)),
        doing="made steps of another kind",
        why=f"it makes those while this rank waits longest: {format_ns(int(kept_ns))} of them",
        line=_line(case, number, waits),
    )


def _waits(case: Case) -> list[tuple[Window, float]]:
    """The sync intervals that lost most of the time, and how much; most first."""
    rows = case.evidence.gpu_stream_in(case.window, case.process.process)
    lost = excess_ns(rows, case.usual)
    order = np.argsort(-lost, kind="stable")
    order = order[: int(np.searchsorted(np.cumsum(lost[order]), _MOST_OF_IT * lost[lost > 0].sum())) + 1]
    times = rows[order][["prev_sync_end_ns", "sync_end_ns"]].tolist()
    windows = (Window(begin_ns=begin, end_ns=end) for begin, end in times)
    return [one for one in zip(windows, lost[order].tolist(), strict=True) if one[1] > 0]


def _other_types(case: Case, stream: Array, usual: Array, waits: Sequence[tuple[Window, float]]) -> list[int]:
    """The kinds of steps that a peer makes while this rank waits: hardly known at best, or seldom at other times.

    Not the one that it spends most of its time with at best, whatever else is slow then.
    """
    at_best, ever, waited = _spent(usual), _spent(stream), Counter[int]()
    (main, _), *_ = at_best.most_common(1)
    for window, _ in waits:
        waited.update(_spent(_touching(window, stream), window))
    whole = case.evidence.gpu_streams[case.process.process]
    span_ns = int((whole["sync_end_ns"] - whole["prev_sync_end_ns"]).sum())
    chance = sum(window.duration_ns for window, _ in waits) / max(span_ns, 1)
    return [
        one
        for one, ns in waited.items()
        if one != main and (at_best[one] < _USUAL * at_best.total() or ns >= _LIFT * chance * ever[one])
    ]


def _spent(rows: Array, within: Window | None = None) -> Counter[int]:
    """Time by kind of step, of all of these sync intervals or of what of them lies in a window."""
    begins, ends = rows["prev_sync_end_ns"], rows["sync_end_ns"]
    if within:
        begins, ends = np.maximum(begins, within.begin_ns), np.minimum(ends, within.end_ns)
    found: Counter[int] = Counter()
    for step_type, ns in zip(rows["step_type"].tolist(), np.maximum(ends - begins, 0).tolist(), strict=True):
        found[step_type] += ns
    return found


def _touching(window: Window, stream: Array) -> Array:
    """The sync intervals of a stream that touch a window."""
    first, last = np.searchsorted(stream["sync_end_ns"], (window.begin_ns, window.end_ns))
    mine: Array = stream[first : last + 1]
    return mine


def _shared_ns(window: Window, stream: Array) -> int:
    """How much of a window some sync intervals take."""
    return _spent(_touching(window, stream), window).total()


def _growth(now: Array, usual: Array) -> float:
    """Launches of a sync interval against the usual ones."""
    return float(now["launches"].mean()) / max(float(usual["launches"].mean()), 1.0) if len(now) else 0.0


def _own_growth(case: Case) -> float:
    number = case.process.process
    before = [case.evidence.gpu_stream_in(one, number) for one in case.baselines]
    return _growth(case.evidence.gpu_stream_in(case.window, number), np.concatenate(before)) if before else 1.0


def _line(case: Case, number: int, waits: Sequence[tuple[Window, float]]) -> CodeLine | None:
    """Where the peer was on a CPU in the longest waits; of short calls only some are recorded."""
    windows = sorted((window for window, _ in waits[:_MOST_WAITS]), key=lambda window: window.begin_ns)
    return spent(stays(case.evidence, number, windows, None, RUN)).line


def _overlap(case: Case, other: Case) -> float:
    """Of the shorter one: in a long time range a rank may have waited for one that was late in a part of it."""
    begin, end = max(case.window.begin_ns, other.window.begin_ns), min(case.window.end_ns, other.window.end_ns)
    return (end - begin) / max(min(case.window.duration_ns, other.window.duration_ns), 1)
