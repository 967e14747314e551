"""Data workers that are too slow for the loop at its best, masked by another cause that slows the loop as much.

A loop takes as long as the slowest thing that it waits for. Such workers cost nothing now, and all of it again once the
other cause is fixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.data.producers import ASLEEP, DISK, NETWORK, ON_CPU
from ingero.diagnose.findings import CodeLine, FindingKind
from ingero.diagnose.samples.process_roles import data_workers
from ingero.diagnose.samples.stack_samples import RUN, SLEEP, group_samples, sampled_time, waits_for_items
from ingero.events import THREAD_STATES, WAKER_KINDS
from ingero.store.records import Process, Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

MIN_RATIO = 0.05  # of wall time that they alone would cost, before they are reported
_COMPARED_NS = 10 * SECOND_NS  # at the end of a case, and of its baseline
_MIN_STEPS_PER_PIECE = 20  # a piece may hold one step more or less than its share
# of the loop's time in the baseline in which the workers wait for it; below it they already set its pace
_MIN_SPARE_RATIO = 0.05
_MIN_UNCLAIMED_SHARE = 0.5  # of what they are too slow by; where more was claimed as waits, those findings report it
_SLEEP_STATE, _IO_STATE = THREAD_STATES.index("sleep"), THREAD_STATES.index("io")
_WAKER_BY_DOING = {ASLEEP: WAKER_KINDS.index("timer"), NETWORK: WAKER_KINDS.index("network")}


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedWorkers:
    """Data workers that nobody waits for yet. ratio: of wall time that they alone would cost.

    needed_ns, step_ns: what they need for a step, and what a step takes in the baseline. doing: what grew most; line:
    where, as far as samples tell.
    """

    worker: Process
    needed_ns: float
    step_ns: float
    ratio: float
    doing: str
    line: CodeLine | None


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a case: its steps, their time in the baseline, and what each worker did on average, ns by activity."""

    steps: int
    best_ns: float
    by_doing_ns: Counter[str]

    @property
    def needed_ns(self) -> float:
        """What the workers needed for these steps."""
        return sum(self.by_doing_ns.values())

    @property
    def late_ns(self) -> float:
        """What the workers needed beyond the baseline time of the steps."""
        return max(self.needed_ns - self.best_ns, 0.0)


def find_masked_workers(case: Case) -> MaskedWorkers | None:
    """Data workers that need longer for a step than the loop's baseline, beyond waits for them already claimed."""
    workers = data_workers(case.evidence, case.process)
    if case.kind is not FindingKind.INCIDENT or case.resync or not workers or not case.baseline_windows:
        return None
    if case.ratio(case.lost_ns - _waited_ns(case)) < MIN_RATIO:
        return None  # a loop loses at least the time by which its workers are too slow
    healthy, now = (
        _last_part(window)
        for window in (max(case.baseline_windows, key=lambda window: window.duration_ns), case.window)
    )
    baseline = _piece(case, _main_threads(case, workers, healthy), healthy)
    threads = _main_threads(case, workers, now)
    pieces = [_piece(case, threads, piece) for piece in _pieces_of(case, now)]
    late = [piece for piece in pieces if piece.late_ns > 0]
    too_slow = sum(piece.late_ns for piece in late) / max(now.duration_ns, 1)
    ratio = too_slow - case.ratio(_waited_ns(case))
    had_time = baseline.needed_ns < (1 - _MIN_SPARE_RATIO) * healthy.duration_ns
    if not had_time or not baseline.steps or ratio < max(MIN_RATIO, _MIN_UNCLAIMED_SHARE * too_slow):
        return None
    steps = max(sum(piece.steps for piece in late), 1)
    doing = _grown_most(late, baseline, steps)
    worst = max(zip(workers, threads, strict=True), key=lambda one: _time_by_doing(one[1], now)[doing])[0]
    return MaskedWorkers(
        worker=worst,
        needed_ns=sum(piece.needed_ns for piece in late) / steps,
        step_ns=sum(piece.best_ns for piece in late) / steps,
        ratio=ratio,
        doing=doing,
        line=_line(case, worst, now, doing),
    )


def _last_part(window: Window) -> Window:
    return Window(begin_ns=max(window.begin_ns, window.end_ns - _COMPARED_NS), end_ns=window.end_ns)


def _pieces_of(case: Case, window: Window) -> Iterator[Window]:
    """Parts of a window with enough steps each."""
    step_ns = max((best.reference.t_ns for best in case.references.values()), default=0.0)
    count = max(1, int(window.duration_ns // max(SECOND_NS, _MIN_STEPS_PER_PIECE * step_ns)))
    edges = np.linspace(window.begin_ns, window.end_ns, count + 1).astype(np.int64).tolist()
    return (Window(begin_ns=begin, end_ns=end) for begin, end in pairwise(edges))


def _main_threads(case: Case, workers: Sequence[Process], window: Window) -> list[Array]:
    """Off-CPU intervals of each worker's main thread."""
    rows = case.evidence.offcpu_in(window)
    return [rows[rows["tid"] == worker.pid] for worker in workers]


def _piece(case: Case, threads: Sequence[Array], window: Window) -> _Piece:
    intervals = case.evidence.gpu_stream_in(window, case.process.process)
    best_ns = (intervals["sync_end_ns"] - intervals["prev_sync_end_ns"]).astype(np.float64)
    for step_type, best in case.references.items():
        best_ns[intervals["step_type"] == step_type] = best.reference.t_ns
    total: Counter[str] = Counter()
    for rows in threads:
        total.update(_time_by_doing(rows, window))
    average = Counter({doing: ns // len(threads) for doing, ns in total.items()})
    return _Piece(len(intervals), float(best_ns.sum()), average)


def _time_by_doing(rows: Array, window: Window) -> Counter[str]:
    """What a thread did in a window, ns by activity, without waits for the loop and for a CPU.

    An interval off the CPU is recorded when it ends: after the last one the thread may be in another one.
    """
    last_ns = min(window.end_ns, int((rows["start_ns"] + rows["duration_ns"]).max())) if len(rows) else 0
    rows = rows[(rows["start_ns"] < window.end_ns) & (rows["start_ns"] + rows["duration_ns"] > window.begin_ns)]
    if not len(rows):
        return Counter()
    begins = np.maximum(rows["start_ns"], window.begin_ns)
    ends = np.minimum(rows["start_ns"] + rows["duration_ns"], window.end_ns)
    woken = np.where(rows["woken_ns"] > 0, np.clip(rows["woken_ns"], begins, ends), ends)
    by_doing = Counter({ON_CPU: int(last_ns - window.begin_ns - (ends - begins).sum())})
    for doing, kind in _WAKER_BY_DOING.items():
        is_doing = (rows["state"] == _SLEEP_STATE) & (rows["waker_kind"] == kind)
        by_doing[doing] = int((woken - begins)[is_doing].sum())
    by_doing[DISK] = int((woken - begins)[rows["state"] == _IO_STATE].sum())
    return by_doing


def _waited_ns(case: Case) -> int:
    """Waits for other threads or processes that rules have already claimed."""
    return sum(ns for finding in case.findings for bucket, ns in finding.claims.items() if bucket.state == "sleep")


def _grown_most(late: Sequence[_Piece], baseline: _Piece, steps: int) -> str:
    """What workers do longer for a step than in the baseline."""
    now: Counter[str] = Counter()
    for piece in late:
        now.update(piece.by_doing_ns)
    return max(now, key=lambda doing: now[doing] / steps - baseline.by_doing_ns[doing] / baseline.steps)


def _line(case: Case, worker: Process, window: Window, doing: str) -> CodeLine | None:
    """Where the worker was in that activity."""
    groups = group_samples(case.evidence, worker.process, (window,), None, RUN if doing == ON_CPU else SLEEP)
    return sampled_time([group for group in groups if group.stack and not waits_for_items(group.stack)]).line
