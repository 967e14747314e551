"""Waits of a rank that end when the last rank has come: the process that ends them only passes that on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.store.records import Process

_AT_ONCE_NS = 2_000_000  # from the end of a rank's GPU work to its arrival, and to the end of the others' waits
_MIN_SHARE = 0.7  # of the waits end so, before that rank is the late one
_MIN_TIMES_CHANCE = 2.0  # times as many as a rank would end by chance, whose steps are that short


def asked_by_others(case: Case, pid: int) -> list[Process]:
    """The other traced processes with GPU work whose sleeps this process ended, too."""
    evidence = case.evidence
    others = (evidence.processes[number] for number in evidence.gpu_streams if number != case.process.process)
    return [one for one in others if any(waker.waker_pid == pid for waker in evidence.wakers(one.process))]


def late_rank(case: Case, waits: Sequence[PathSegment], others: Sequence[Process]) -> Process | None:
    """The one of these processes whose GPU work ended just before most of the waits did; None: there is none."""
    ends = np.array([wait.end_ns for wait in waits])
    shares = [(_share_after(case, one, ends), one) for one in others]
    share, late = max(shares, key=lambda one: one[0], default=(0.0, None))
    return late if share >= _MIN_SHARE else None


def _share_after(case: Case, other: Process, ends: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """The share of these moments right after a sync of another process, 0 to 1; 0.0 where that is chance."""
    syncs = np.sort(case.evidence.gpu_stream_in(case.window, other.process)["sync_end_ns"])
    if not len(syncs) or not len(ends):
        return 0.0
    before = syncs[np.maximum(np.searchsorted(syncs, ends, side="right") - 1, 0)]
    share = float(((ends >= before) & (ends - before <= _AT_ONCE_NS)).mean())
    chance = min(_AT_ONCE_NS * len(syncs) / max(case.window.duration_ns, 1), 1.0)
    return share if share >= _MIN_TIMES_CHANCE * chance else 0.0
