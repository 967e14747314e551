"""Copies to the GPU that waited for the host: they touched pages of a mapped file, which somebody had to read first.

From outside such a copy is a call that waits for the GPU. What tells the two apart is who ended its sleep: another
process, in seconds in which pages had to be read because they were touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.findings import Bucket, CodeLine, Part
from ingero.diagnose.lost_time.buckets import DEVICE
from ingero.events import THREAD_STATES, WAKER_KINDS
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

_MOSTLY = 0.5  # of the GPU's lost time
MIN_FAULTS = 20  # fewer are single pages of a program or library that was not in memory
_ASLEEP = [THREAD_STATES.index(name) for name in ("sleep", "uninterruptible")]
_THREAD = WAKER_KINDS.index("thread")
_DRIVERS = ("nvidia", "nv_", "irq/", "UVM", "kworker")  # threads of the driver end waits for the GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedFaults:
    """Waits in copies that others ended. served: who, with the time; waits: how many; faults: pages read."""

    claims: dict[Bucket, int]
    served: Counter[tuple[int, str]]
    waits: int
    faults: int
    line: CodeLine | None


def copied_faults(case: Case) -> CopiedFaults | None:
    """Those beyond the reference; None where there are none, or no page had to be read."""
    if not case.evidence.has_offcpu:
        return None
    faults = _faults(case)
    if faults < MIN_FAULTS:
        return None
    mine, usual = _waits(case, (case.window,)), _waits(case, case.baselines)
    scale = case.window.duration_ns / max(sum(one.duration_ns for one in case.baselines), 1)
    grown_ns = float(_asleep_ns(mine).sum()) - scale * float(_asleep_ns(usual).sum())
    if grown_ns >= _MOSTLY * case.total((Part.GPU,), (DEVICE,)):
        grown_ns = max(grown_ns, _longer_copies_ns(case))
    claims = case.take((Part.GPU,), (DEVICE,), grown_ns) if grown_ns > 0 else {}
    if not sum(claims.values()):
        return None
    served: Counter[tuple[int, str]] = Counter()
    for row, ns in zip(mine, _asleep_ns(mine).tolist(), strict=True):
        served[int(row["waker_pid"]), case.evidence.text(int(row["waker_name"]))] += ns
    source, op = _call(case)
    line = case.evidence.call_line(case.window, case.process.process, source, op)
    return CopiedFaults(claims=claims, served=served, waits=len(mine), faults=faults, line=line)


def _faults(case: Case) -> int:
    """Pages that the process's threads had to wait for."""
    rows = case.evidence.thread_state_seconds((case.window,), case.process.process)
    return int(np.maximum(rows["major_faults"], 0).sum())


def _waits(case: Case, windows: Iterable[Window]) -> Array:
    """Sleeps of the syncing threads inside such calls that a thread of another process ended, not the driver's."""
    found = [case.evidence.offcpu[:0]]
    strangers = set(case.family)
    for window in windows:
        rows = case.evidence.offcpu_in(window)
        is_mine = np.isin(rows["tid"], np.unique(case.sync_intervals["sync_tid"])) & (
            rows["process"] == case.process.process
        )
        is_ended = (rows["waker_kind"] == _THREAD) & (rows["waker_pid"] > 0) & ~np.isin(rows["waker_pid"], [*strangers])
        rows = rows[is_mine & is_ended & (rows["is_gpu_call"] != 0) & np.isin(rows["state"], _ASLEEP)]
        names = [case.evidence.text(int(name)) for name in rows["waker_name"]]
        found.append(rows[np.array([not name.startswith(_DRIVERS) for name in names], bool)])
    return np.concatenate(found)


def _longer_copies_ns(case: Case) -> float:
    """What such copies took longer than in the reference, by their exact sums.

    Beside a sleep each page costs its fault, the answer's way back and the wait for a CPU: none of it is the GPU's.
    """
    mine = [one for one in case.op_changes if (one.totals.source, one.totals.op) == _call(case)]
    longer = (one.longer_ns if one.usual_timed else one.grown_ns for one in mine)
    return sum(longer) * case.sync_interval_count


def _asleep_ns(rows: Array) -> Array:
    length: Array = np.where(rows["woken_ns"] > 0, rows["woken_ns"] - rows["start_ns"], rows["duration_ns"])
    return np.clip(length, 0, rows["duration_ns"])


def _call(case: Case) -> tuple[int, int]:
    """The call that ended most of what was lost."""
    lost: Counter[tuple[int, int]] = Counter()
    for source, op, ns in zip(
        case.sync_intervals["source"].tolist(), case.sync_intervals["op"].tolist(), case.excess_ns.tolist(), strict=True
    ):
        lost[source, op] += max(int(ns), 0)
    return max(lost, key=lambda one: lost[one], default=(0, 0))
