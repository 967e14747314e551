"""Data workers that are too slow for the loop at its best, while something else makes the loop as slow as they are.

A loop takes as long as the slowest of those that it waits for. Such a worker costs nothing for now, and all of it again
once the other cause is gone.
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
from ingero.diagnose.samples.stack_samples import RUN, SLEEP, spent, stays, waits_for_items
from ingero.events import THREAD_STATES, WAKER_KINDS
from ingero.store.records import Process, Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

MIN_RATIO = 0.05  # of wall time that they alone would cost, before it is told
_LOOKED_AT_NS = 10 * SECOND_NS  # at the end of a case, and of its reference
_STEPS = 20  # at least so many are compared at once: a piece may hold one more or less than its share
_SPARE = 0.05  # of a healthy loop's time in which they wait for it; with less they were its pace already
_UNTOLD = 0.5  # of what they are too slow by; where more was charged to waits, those tell of it
_SLEEP, _IO = THREAD_STATES.index("sleep"), THREAD_STATES.index("io")
_ASLEEP = {ASLEEP: WAKER_KINDS.index("timer"), NETWORK: WAKER_KINDS.index("network")}


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenWork:
    """Data workers that nobody waits for yet. ratio: of wall time that they alone would cost.

    needed_ns, step_ns: what they take for a step, and what a step takes at best. doing: what of it grew most; line:
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
    """A time range of a case: its steps, what these take at best, and what each worker did on average, ns by what."""

    steps: int
    wanted_ns: float
    spent: Counter[str]

    @property
    def needed_ns(self) -> float:
        """By the workers, for these steps."""
        return sum(self.spent.values())

    @property
    def late_ns(self) -> float:
        """What they take beyond the steps at best."""
        return max(self.needed_ns - self.wanted_ns, 0.0)


def hidden_work(case: Case) -> HiddenWork | None:
    """Data workers that take longer for a step than the loop at its best, as far as no wait for them was charged."""
    workers = data_workers(case.evidence, case.process)
    if case.kind is not FindingKind.INCIDENT or case.resynced or not workers or not case.baselines:
        return None
    if case.ratio(case.lost_ns - _waited_ns(case)) < MIN_RATIO:
        return None  # a loop loses at least what its workers are too slow by
    healthy, now = (_end(one) for one in (max(case.baselines, key=lambda one: one.duration_ns), case.window))
    usual = _piece(case, _main_threads(case, workers, healthy), healthy)
    threads = _main_threads(case, workers, now)
    pieces = [_piece(case, threads, one) for one in _cut(case, now)]
    late = [one for one in pieces if one.late_ns > 0]
    too_slow = sum(one.late_ns for one in late) / max(now.duration_ns, 1)
    ratio = too_slow - case.ratio(_waited_ns(case))
    had_time = usual.needed_ns < (1 - _SPARE) * healthy.duration_ns
    if not had_time or not usual.steps or ratio < max(MIN_RATIO, _UNTOLD * too_slow):
        return None
    steps = max(sum(one.steps for one in late), 1)
    doing = _grown(late, usual, steps)
    worst = max(zip(workers, threads, strict=True), key=lambda one: _spent(one[1], now)[doing])[0]
    return HiddenWork(
        worker=worst,
        needed_ns=sum(one.needed_ns for one in late) / steps,
        step_ns=sum(one.wanted_ns for one in late) / steps,
        ratio=ratio,
        doing=doing,
        line=_line(case, worst, now, doing),
    )


def _end(window: Window) -> Window:
    return Window(begin_ns=max(window.begin_ns, window.end_ns - _LOOKED_AT_NS), end_ns=window.end_ns)


def _cut(case: Case, window: Window) -> Iterator[Window]:
    """Pieces with enough steps each."""
    step_ns = max((one.reference.t_ns for one in case.usual.values()), default=0.0)
    count = max(1, int(window.duration_ns // max(SECOND_NS, _STEPS * step_ns)))
    edges = np.linspace(window.begin_ns, window.end_ns, count + 1).astype(np.int64).tolist()
    return (Window(begin_ns=begin, end_ns=end) for begin, end in pairwise(edges))


def _main_threads(case: Case, workers: Sequence[Process], window: Window) -> list[Array]:
    """The intervals off the CPU of each worker's main thread."""
    rows = case.evidence.offcpu_in(window)
    return [rows[rows["tid"] == one.pid] for one in workers]


def _piece(case: Case, threads: Sequence[Array], window: Window) -> _Piece:
    mine = case.evidence.gpu_stream_in(window, case.process.process)
    wanted = (mine["sync_end_ns"] - mine["prev_sync_end_ns"]).astype(np.float64)
    for key, one in case.usual.items():
        wanted[mine["step_type"] == key] = one.reference.t_ns
    total: Counter[str] = Counter()
    for rows in threads:
        total.update(_spent(rows, window))
    average = Counter({doing: ns // len(threads) for doing, ns in total.items()})
    return _Piece(len(mine), float(wanted.sum()), average)


def _spent(rows: Array, window: Window) -> Counter[str]:
    """What a thread did in a window, ns by what, by its intervals; waits for the loop and for a CPU are left out."""
    rows = rows[(rows["start_ns"] < window.end_ns) & (rows["start_ns"] + rows["duration_ns"] > window.begin_ns)]
    if not len(rows):
        return Counter()
    begins = np.maximum(rows["start_ns"], window.begin_ns)
    ends = np.minimum(rows["start_ns"] + rows["duration_ns"], window.end_ns)
    woken = np.where(rows["woken_ns"] > 0, np.clip(rows["woken_ns"], begins, ends), ends)
    found = Counter({ON_CPU: int(window.duration_ns - (ends - begins).sum())})
    for doing, kind in _ASLEEP.items():
        mine = (rows["state"] == _SLEEP) & (rows["waker_kind"] == kind)
        found[doing] = int((woken - begins)[mine].sum())
    found[DISK] = int((woken - begins)[rows["state"] == _IO].sum())
    return found


def _waited_ns(case: Case) -> int:
    """Waits for others that rules have charged already."""
    return sum(ns for one in case.findings for bucket, ns in one.claims.items() if bucket.state == "sleep")


def _grown(late: Sequence[_Piece], usual: _Piece, steps: int) -> str:
    """What workers do longer for a step than in the reference."""
    now: Counter[str] = Counter()
    for one in late:
        now.update(one.spent)
    return max(now, key=lambda doing: now[doing] / steps - usual.spent[doing] / usual.steps)


def _line(case: Case, worker: Process, window: Window, doing: str) -> CodeLine | None:
    """Where the worker was meanwhile."""
    found = stays(case.evidence, worker.process, (window,), None, RUN if doing == ON_CPU else SLEEP)
    return spent([one for one in found if one.stack and not waits_for_items(one.stack)]).line
