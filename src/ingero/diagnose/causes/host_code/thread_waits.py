"""Waits of the feeding thread for other threads of its own process: what kind of wait, for whom, and both lines."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import KEPT_FROM_RUNNING, answers, is_runnable
from ingero.diagnose.findings import CodeLine, Culprit
from ingero.diagnose.offcpu.critical_path import GIL, Segment
from ingero.diagnose.samples.stack_samples import RUN, SLEEP, Stay, matching, spans_of, spent, stays, waits_for_items

_CLEAR = 0.7  # of the sleeping samples, before they tell what kind of wait it is


class Wait(enum.Enum):
    """What a thread waits for that another thread of its process wakes."""

    LOCK = "a lock"
    ITEM = "an item"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnThreadWait:
    """Waits of the feeding thread for another thread of the process. samples: of the sleeping thread.

    crowd: pids of the job, where nothing proves that it crowds itself more than usual: while one of its threads has the
    CPU that the other thread waits for, that one is waited for.
    """

    pid: int
    tid: int
    partner: str
    partner_line: CodeLine | None
    waiter_line: CodeLine | None
    samples: int
    crowd: frozenset[int]

    def is_on_path(self, one: Segment) -> bool:
        """Whether a piece of a path belongs to such a wait."""
        return is_of_other_thread(one, self.pid) or self.is_crowded(one)

    def is_crowded(self, one: Segment) -> bool:
        """Whether the other thread waits for a CPU that its own job has."""
        return one.tid == self.tid and is_runnable(one) and one.culprit_pid in self.crowd

    def culprit(self, lost_ns: int) -> Culprit:
        """The other thread."""
        return Culprit(pid=self.pid, name=self.partner, lost_ns=lost_ns)


def is_of_other_thread(one: Segment, pid: int) -> bool:
    """Whether another thread of this process was on the critical path and busy: neither held up nor waiting."""
    is_busy = one.state not in KEPT_FROM_RUNNING and one.waker_kind not in {"network", "thread"}
    return one.pid == pid and one.depth > 0 and is_busy


def own_thread_wait(case: Case, kind: Wait) -> OwnThreadWait | None:
    """The waits for the thread that was waited for most, if they are of this kind; None where that is not proven."""
    mine = [one for one in case.waits if is_of_other_thread(one, case.process.pid)]
    if not mine:
        return None
    by_thread: Counter[int] = Counter()
    for one in mine:
        by_thread[one.tid] += one.duration_ns
    partner = by_thread.most_common(1)[0][0]
    if kind is Wait.LOCK and partner in case.evidence.launching(case.process.process).threads:
        return None  # what it does is the step
    asleep = _waiting(case)
    items = matching(asleep, waits_for_items)
    if not asleep or max(items, 1 - items) < _CLEAR or (items >= _CLEAR) is not (kind is Wait.ITEM):
        return None
    line, count = _doing_of(case, [one for one in mine if one.tid == partner])
    if line is None and kind is Wait.LOCK:
        return None
    return OwnThreadWait(
        pid=case.process.pid,
        tid=partner,
        partner=next(case.thread_name(one) for one in mine if one.tid == partner),
        partner_line=line,
        waiter_line=spent(asleep).line,
        samples=sum(one.count for one in asleep) + count,
        crowd=frozenset() if answers(case).is_own_proven else frozenset(case.job),
    )


def running_meanwhile(case: Case, waits: Iterable[Segment], waiters: set[int]) -> tuple[int, list[Stay]]:
    """The other thread of the process that ran most during these waits, and its samples; (0, []) where none is seen."""
    whole = [(one.begin_ns, one.end_ns) for one in waits]
    spans = dict.fromkeys(set(case.evidence.thread_names) - waiters, whole) if whole else {}
    found = stays(case.evidence, case.process.process, (case.window,), spans, RUN)
    by_thread: Counter[int] = Counter()
    for one in found:
        by_thread[one.tid] += one.ns
    if not by_thread:
        return 0, []
    holder = by_thread.most_common(1)[0][0]
    return holder, [one for one in found if one.tid == holder]


def _waiting(case: Case) -> list[Stay]:
    """Samples of syncing and launching threads that slept while another thread was on the critical path."""
    waiters = {
        int(tid) for name in ("prev_sync_tid", "first_launch_tid") for tid in set(case.sync_intervals[name].tolist())
    }
    whole = [(one.begin_ns, one.end_ns) for one in case.waits if one.pid == case.process.pid and one.depth > 0]
    spans = dict.fromkeys(waiters, whole)
    return [one for one in stays(case.evidence, case.process.process, (case.window,), spans, SLEEP) if one.stack]


def _doing_of(case: Case, segments: list[Segment]) -> tuple[CodeLine | None, int]:
    """Where the other thread was, in what it did most of that time; where no sample hit it, in the whole case."""
    process, window, spans = case.process.process, case.window, spans_of(segments)
    ran = sum(one.duration_ns for one in segments if one.state in {"run", GIL})
    states = (RUN, SLEEP) if 2 * ran >= sum(one.duration_ns for one in segments) else (SLEEP, RUN)
    whole = {tid: [(window.begin_ns, window.end_ns)] for tid in spans}
    for state in states:
        for where in (spans, whole):
            mine = stays(case.evidence, process, (window,), where, state)
            found = spent([one for one in mine if not waits_for_items(one.stack)])
            if found.line:
                return found.line, found.count
    return None, 0
