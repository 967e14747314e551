"""Waits of the launching thread for other threads of its own process: which kind, for which thread, and both lines."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import KEPT_FROM_RUNNING, blame_runnable_time, is_runnable
from ingero.diagnose.findings import CodeLine, Culprit
from ingero.diagnose.offcpu.critical_path import GIL, PathSegment
from ingero.diagnose.samples.stack_samples import (
    RUN,
    SLEEP,
    SampleGroup,
    group_samples,
    matching_share,
    sampled_time,
    spans_of,
    waits_for_items,
)

_MIN_SHARE_OF_SAMPLES = 0.7  # of the sleeping samples, before they prove a kind of wait


class Wait(enum.Enum):
    """What a thread waits for until another thread of its process wakes it."""

    LOCK = "a lock"
    ITEM = "an item"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnThreadWait:
    """Waits of the launching thread for another thread of its process. samples: of the sleeping thread.

    crowding_pids: of the job, where nothing proves that it delays itself more than in the baseline: while its threads
    have the CPU that the other thread waits for, the wait still counts as one for that thread.
    """

    pid: int
    tid: int
    partner: str
    partner_line: CodeLine | None
    waiter_line: CodeLine | None
    samples: int
    crowding_pids: frozenset[int]

    def is_on_path(self, segment: PathSegment) -> bool:
        """Whether a path segment belongs to such a wait."""
        return is_of_other_thread(segment, self.pid) or self.is_crowded(segment)

    def is_crowded(self, segment: PathSegment) -> bool:
        """Whether the other thread waits for a CPU on which its own job runs."""
        return segment.tid == self.tid and is_runnable(segment) and segment.culprit_pid in self.crowding_pids

    def culprit(self, lost_ns: int) -> Culprit:
        """The other thread as a culprit."""
        return Culprit(pid=self.pid, name=self.partner, lost_ns=lost_ns)


def is_of_other_thread(segment: PathSegment, pid: int) -> bool:
    """Whether another thread of this process was on the critical path and busy: not kept from running, not waiting."""
    is_busy = segment.state not in KEPT_FROM_RUNNING and segment.waker_kind not in {"network", "thread"}
    return segment.pid == pid and segment.depth > 0 and is_busy


def own_thread_wait(case: Case, kind: Wait) -> OwnThreadWait | None:
    """Waits for the thread that was waited for most, if they are of this kind; None where that is not proven."""
    waits = [wait for wait in case.waits if is_of_other_thread(wait, case.process.pid)]
    if not waits:
        return None
    by_thread: Counter[int] = Counter()
    for segment in waits:
        by_thread[segment.tid] += segment.duration_ns
    partner = by_thread.most_common(1)[0][0]
    if kind is Wait.LOCK and partner in case.evidence.launching(case.process.process).threads:
        return None  # a launching thread's work is the step itself
    own = [wait for wait in case.waits if wait.pid == case.process.pid and wait.depth > 0]
    asleep = [group for group in asleep_meanwhile(case, own) if group.stack]
    items = matching_share(asleep, waits_for_items)
    if (
        not asleep
        or max(items, 1 - items) < _MIN_SHARE_OF_SAMPLES
        or (items >= _MIN_SHARE_OF_SAMPLES) is not (kind is Wait.ITEM)
    ):
        return None
    line, count = _line_of_partner(case, [segment for segment in waits if segment.tid == partner])
    if line is None and kind is Wait.LOCK:
        return None
    return OwnThreadWait(
        pid=case.process.pid,
        tid=partner,
        partner=next(case.thread_name(segment) for segment in waits if segment.tid == partner),
        partner_line=line,
        waiter_line=sampled_time(asleep).line,
        samples=sum(group.count for group in asleep) + count,
        crowding_pids=frozenset() if blame_runnable_time(case).is_own_proven else frozenset(case.job),
    )


def thread_running_meanwhile(
    case: Case, waits: Iterable[PathSegment], waiters: set[int]
) -> tuple[int, list[SampleGroup]]:
    """The other thread of the process that ran most during these waits, with its samples; (0, []) if none was seen."""
    wait_spans = [(segment.begin_ns, segment.end_ns) for segment in waits]
    spans = dict.fromkeys(set(case.evidence.thread_names) - waiters, wait_spans) if wait_spans else {}
    groups = group_samples(case.evidence, case.process.process, (case.window,), spans, RUN)
    by_thread: Counter[int] = Counter()
    for group in groups:
        by_thread[group.tid] += group.ns
    if not by_thread:
        return 0, []
    holder = by_thread.most_common(1)[0][0]
    return holder, [group for group in groups if group.tid == holder]


def asleep_meanwhile(case: Case, waits: Iterable[PathSegment]) -> list[SampleGroup]:
    """Where the process's own critical-path threads slept during these path segments."""
    wait_spans = [(wait.begin_ns, wait.end_ns) for wait in waits]
    if not wait_spans:
        return []
    threads = {
        int(tid) for name in ("prev_sync_tid", "first_launch_tid") for tid in set(case.sync_intervals[name].tolist())
    }
    spans = dict.fromkeys(threads, wait_spans)
    return group_samples(case.evidence, case.process.process, (case.window,), spans, SLEEP)


def _line_of_partner(case: Case, segments: list[PathSegment]) -> tuple[CodeLine | None, int]:
    """The other thread's line in what it mostly did then; without samples, its line in the whole case."""
    process, window, spans = case.process.process, case.window, spans_of(segments)
    ran = sum(segment.duration_ns for segment in segments if segment.state in {"run", GIL})
    states = (RUN, SLEEP) if 2 * ran >= sum(segment.duration_ns for segment in segments) else (SLEEP, RUN)
    whole_case = {tid: [(window.begin_ns, window.end_ns)] for tid in spans}
    for state in states:
        for where in (spans, whole_case):
            groups = group_samples(case.evidence, process, (window,), where, state)
            at_work = sampled_time([group for group in groups if not waits_for_items(group.stack)])
            if at_work.line:
                return at_work.line, at_work.count
    return None, 0
