"""Copies to the GPU that waited for the host: they touched pages of a mapped file that had to be read first.

From outside, such a copy is a call that waits for the GPU. The two differ by who ended the sleep: another process, in
seconds with major page faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.findings import Bucket, CodeLine, Part
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION
from ingero.events import THREAD_STATES, WAKER_KINDS
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

_MIN_SHARE_OF_GPU_TIME = 0.5  # of the GPU's lost time
MIN_FAULTS = 20  # fewer are single pages of a program or library that was not in memory
_SLEEPING_STATES = [THREAD_STATES.index(name) for name in ("sleep", "uninterruptible")]
_THREAD_WAKER = WAKER_KINDS.index("thread")
_DRIVER_THREADS = ("nvidia", "nv_", "irq/", "UVM", "kworker")  # they end waits for the GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedFaults:
    """Waits inside copies that other processes ended. served: (pid, name) of these, with ns; waits, faults: counts."""

    claims: dict[Bucket, int]
    served: Counter[tuple[int, str]]
    waits: int
    faults: int
    line: CodeLine | None


def copied_faults(case: Case) -> CopiedFaults | None:
    """Such waits beyond the baseline; None where there are none, or no page was read."""
    if not case.evidence.has_offcpu:
        return None
    faults = _faults(case)
    if faults < MIN_FAULTS:
        return None
    sleeps, baseline = _served_sleeps(case, (case.window,)), _served_sleeps(case, case.baseline_windows)
    scale = case.window.duration_ns / max(sum(window.duration_ns for window in case.baseline_windows), 1)
    grown_ns = float(_asleep_ns(sleeps).sum()) - scale * float(_asleep_ns(baseline).sum())
    if grown_ns >= _MIN_SHARE_OF_GPU_TIME * case.total((Part.GPU,), (GPU_EXECUTION,)):
        grown_ns = max(grown_ns, _longer_copies_ns(case))
    claims = case.claimable((Part.GPU,), (GPU_EXECUTION,), grown_ns) if grown_ns > 0 else {}
    if not sum(claims.values()):
        return None
    served: Counter[tuple[int, str]] = Counter()
    for row, ns in zip(sleeps, _asleep_ns(sleeps).tolist(), strict=True):
        served[int(row["waker_pid"]), case.evidence.text(int(row["waker_name"]))] += ns
    source, op = _costliest_call(case)
    line = case.evidence.call_line(case.window, case.process.process, source, op)
    return CopiedFaults(claims=claims, served=served, waits=len(sleeps), faults=faults, line=line)


def _faults(case: Case) -> int:
    """Major page faults of the process's threads in the case."""
    rows = case.evidence.thread_state_seconds((case.window,), case.process.process)
    return int(np.maximum(rows["major_faults"], 0).sum())


def _served_sleeps(case: Case, windows: Iterable[Window]) -> Array:
    """Sleeps of the syncing threads inside GPU calls, ended by a thread of another process but not of the driver."""
    rows_found = [case.evidence.offcpu[:0]]
    family = set(case.family)
    for window in windows:
        rows = case.evidence.offcpu_in(window)
        is_of_sync_thread = np.isin(rows["tid"], np.unique(case.sync_intervals["sync_tid"])) & (
            rows["process"] == case.process.process
        )
        is_ended = (
            (rows["waker_kind"] == _THREAD_WAKER) & (rows["waker_pid"] > 0) & ~np.isin(rows["waker_pid"], [*family])
        )
        rows = rows[
            is_of_sync_thread & is_ended & (rows["is_gpu_call"] != 0) & np.isin(rows["state"], _SLEEPING_STATES)
        ]
        names = [case.evidence.text(int(name)) for name in rows["waker_name"]]
        rows_found.append(rows[np.array([not name.startswith(_DRIVER_THREADS) for name in names], bool)])
    return np.concatenate(rows_found)


def _longer_copies_ns(case: Case) -> float:
    """How much longer such copies took than in the baseline, by their exact sums.

    Beside a sleep, each page costs its fault, the return of the answer and a wait for a CPU; none of that is GPU time.
    """
    changes = [
        change for change in case.op_changes if (change.totals.source, change.totals.op) == _costliest_call(case)
    ]
    longer = (change.longer_ns if change.baseline_timed else change.grown_ns for change in changes)
    return sum(longer) * case.sync_interval_count


def _asleep_ns(rows: Array) -> Array:
    length: Array = np.where(rows["woken_ns"] > 0, rows["woken_ns"] - rows["start_ns"], rows["duration_ns"])
    return np.clip(length, 0, rows["duration_ns"])


def _costliest_call(case: Case) -> tuple[int, int]:
    """The (source, op) of the call in which most time was lost."""
    lost: Counter[tuple[int, int]] = Counter()
    for source, op, ns in zip(
        case.sync_intervals["source"].tolist(), case.sync_intervals["op"].tolist(), case.excess_ns.tolist(), strict=True
    ):
        lost[source, op] += max(int(ns), 0)
    return max(lost, key=lambda call: lost[call], default=(0, 0))
