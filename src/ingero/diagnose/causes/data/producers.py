"""What the producers of input data did while the GPU was idle: data workers, and threads that others wait for."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.findings import CodeLine, Culprit, FindingKind, Fix
from ingero.diagnose.offcpu.critical_path import GIL, PathSegment
from ingero.diagnose.samples.process_roles import max_concurrent
from ingero.diagnose.samples.stack_samples import (
    MIN_SAMPLES,
    RUN,
    SLEEP,
    Doing,
    SampleGroup,
    Spans,
    group_samples,
    sampled_time,
    spans_of,
    waits_for_items,
)
from ingero.ops import Source

ON_CPU = "on-cpu"
COLLECTING = "collecting"
PASSING = "passing"
DISK = "disk"
ASLEEP = "asleep"
NETWORK = "network"
HELD = "held up"
_DOING_BY_STATE = {
    ("run", "none"): ON_CPU,
    (GIL, "none"): ON_CPU,
    ("runq", "none"): "runnable",
    ("throttled", "none"): "throttled",
    ("io", "block"): DISK,
    ("sleep", "timer"): ASLEEP,
    ("sleep", "network"): NETWORK,
    ("sleep", "thread"): "process",
    ("uninterruptible", "thread"): HELD,
}
TEXTS = {
    ON_CPU: "computing",
    COLLECTING: "collecting garbage",
    PASSING: "passing items between processes",
    "runnable": "waiting for a CPU",
    "throttled": "throttled by a CPU quota",
    DISK: "reading from disk",
    ASLEEP: "sleeping on a timer",
    NETWORK: "waiting for the network",
    "process": "waiting for another process",
    HELD: "held up in the kernel",
    "waiting": "waiting for something else",
}
_NAME_BY_DOING = {Doing.COLLECTING: COLLECTING, Doing.PASSING: PASSING}
_MINOR_BITS = 20  # of a dev_t, include/linux/kdev_t.h
_MIN_SHARE_OF_RUNNING = 0.5  # before a producer is said to do something else than compute


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """What producers did from the start of the waits until they delivered; for a bottleneck, from one item to the next.

    doing: ns by activity, most first. producers: (pid, name, ns), most first. line: where, in the first activity.
    source: the disk or process that they waited for; "" if none, or unknown.
    """

    doing: tuple[tuple[str, int], ...]
    producers: tuple[tuple[int, str, int], ...]
    line: CodeLine | None
    source: str = ""

    @property
    def worst(self) -> str:
        """The activity that took most of the time."""
        return self.doing[0][0]

    @property
    def total_ns(self) -> int:
        """Time of all activities."""
        return sum(ns for _, ns in self.doing)

    @property
    def worst_share(self) -> float:
        """Share of that activity in the total (0-1)."""
        return self.doing[0][1] / max(self.total_ns, 1)

    @property
    def who(self) -> str:
        """The producer that was waited for most, as text."""
        pid, name, _ = self.producers[0]
        return f"{name} [{pid}]"

    def culprits(self, lost_ns: int) -> tuple[Culprit, ...]:
        """The producers, with the lost time divided among them."""
        total = max(self.total_ns, 1)
        return tuple(Culprit(pid=pid, name=name, lost_ns=lost_ns * ns // total) for pid, name, ns in self.producers)


def production(case: Case, segments: Sequence[PathSegment]) -> Production:
    """What the producers on these path segments did."""
    doing: Counter[str] = Counter()
    by_producer: Counter[tuple[int, str]] = Counter()
    for segment in segments:
        doing[_doing_of(segment)] += segment.duration_ns
        by_producer[segment.pid, case.thread_name(segment)] += segment.duration_ns
    on_cpu = [segment for segment in segments if _doing_of(segment) == ON_CPU]
    at_work = _groups_of(case, on_cpu, RUN)
    _rename_running(doing, at_work)
    worst = doing.most_common(1)[0][0]
    worst_segments = [segment for segment in segments if _doing_of(segment) == worst]
    kind = next((doing for doing, name in _NAME_BY_DOING.items() if name == worst), None)
    worst_groups = [group for group in at_work if kind in {None, group.doing}]
    if worst not in {ON_CPU, COLLECTING, PASSING}:
        worst_groups = (
            _groups_of(case, worst_segments, SLEEP) if worst != "runnable" else _groups_of(case, segments, RUN)
        )
    return Production(
        doing=tuple(doing.most_common()),
        producers=tuple((*key, ns) for key, ns in by_producer.most_common()),
        line=sampled_time(worst_groups).line,
        source=_slowest_disk(case, worst_segments) if worst == DISK else _longest_partner(case, worst_segments),
    )


def whole_cycles(case: Case, segments: Sequence[PathSegment]) -> Sequence[PathSegment]:
    """For a bottleneck also what the producers did before, back to the previous item: all of that makes an item late.

    When the loop begins to wait, part of that is over, and which part depends on chance.
    """
    if case.kind is not FindingKind.BOTTLENECK:
        return segments
    producers = {segment.tid for segment in segments}
    cycle_ns = len(producers) * int(
        (case.sync_intervals["sync_end_ns"] - case.sync_intervals["prev_sync_end_ns"]).mean()
    )
    waits: dict[int, list[PathSegment]] = defaultdict(list)
    sync_intervals = np.searchsorted(
        case.sync_intervals["sync_end_ns"], [segment.end_ns for segment in segments]
    ).tolist()
    for segment, sync_interval in zip(segments, sync_intervals, strict=True):
        waits[sync_interval].append(segment)
    segments_found = list(segments)
    for of_interval in waits.values():
        first = min(of_interval, key=lambda segment: segment.begin_ns)
        left_ns = cycle_ns - sum(segment.duration_ns for segment in of_interval)
        before = case.evidence.critical_paths.before(first, max(left_ns, 0))
        segments_found += [segment for segment in before if segment.tid in producers and segment.pid in case.family]
    return segments_found


def workers_of(case: Case, segments: Sequence[PathSegment]) -> tuple[int, ...]:
    """Pids of the other processes on these path segments, ascending."""
    return tuple(sorted({segment.pid for segment in segments} - {case.process.pid}))


def _slowest_disk(case: Case, segments: Sequence[PathSegment]) -> str:
    """The disk on which these threads' reads took longest, as major:minor."""
    times: Counter[int] = Counter()
    for process in {segment.process for segment in segments}:
        for event in case.evidence.events(case.window, (Source.IO,), process):
            times[int(event["arg2"])] += int(event["duration_ns"])
    if not times:
        return ""
    number = times.most_common(1)[0][0]
    return f"{number >> _MINOR_BITS}:{number & ((1 << _MINOR_BITS) - 1)}"


def _longest_partner(case: Case, segments: Sequence[PathSegment]) -> str:
    """The process that these threads waited for longest; "" if there is none."""
    partners: Counter[int] = Counter()
    for segment in segments:
        if segment.waker_pid and segment.waker_kind == "thread":
            partners[segment.waker_pid] += segment.duration_ns
    if not partners:
        return ""
    pid = partners.most_common(1)[0][0]
    return f"{case.evidence.waker_names.get(pid, 'pid')} [{pid}]"


def _doing_of(segment: PathSegment) -> str:
    return _DOING_BY_STATE.get((segment.state, segment.waker_kind), "waiting")


def _rename_running(doing: Counter[str], at_work: Sequence[SampleGroup]) -> None:
    """Names the running time after what most of its samples did."""
    total = sum(group.ns for group in at_work)
    for kind, name in _NAME_BY_DOING.items():
        kind_ns = sum(group.ns for group in at_work if group.doing is kind)
        if total and kind_ns >= _MIN_SHARE_OF_RUNNING * total and sum(group.count for group in at_work) >= MIN_SAMPLES:
            doing[name] = doing.pop(ON_CPU, 0)


def _groups_of(case: Case, segments: Sequence[PathSegment], state: int) -> list[SampleGroup]:
    """Sample groups within these path segments; if too few, of these threads in the whole case, without item waits.

    One sample of a sleep says where it was; one sample of a running thread may be anywhere.
    """
    groups = _groups_within(case, segments, spans_of(segments), state)
    if sum(group.count for group in groups) >= (1 if state == SLEEP else MIN_SAMPLES):
        return groups
    whole_case = (case.window.begin_ns, case.window.end_ns)
    more = _groups_within(case, segments, {segment.tid: [whole_case] for segment in segments}, state)
    return [group for group in more if not (waits_for_items(group.stack) or group.doing is Doing.PASSING)] or groups


def _groups_within(case: Case, segments: Sequence[PathSegment], spans: Spans, state: int) -> list[SampleGroup]:
    processes = {segment.process for segment in segments}
    groups = [
        group for process in processes for group in group_samples(case.evidence, process, (case.window,), spans, state)
    ]
    return [group for group in groups if group.stack is not None]


def workers_needed(case: Case, workers: int) -> int:
    """How many workers of this speed would keep the GPU busy."""
    lengths = case.sync_intervals["sync_end_ns"] - case.sync_intervals["prev_sync_end_ns"]
    now_ns = float(lengths.mean())
    if case.kind is FindingKind.BOTTLENECK:
        goal_ns = now_ns - float(case.sync_intervals["idle_ns"].mean())
    else:
        goal_ns = sum(
            best.reference.t_ns * int((case.sync_intervals["step_type"] == step_type).sum())
            for step_type, best in case.references.items()
        )
        goal_ns /= max(len(lengths), 1)
    return max(workers + 1, math.ceil(workers * now_ns / max(goal_ns, 1.0)))


def fixes(case: Case, produced: Production) -> tuple[Fix, ...]:
    """Fixes for the activity that took most of the time."""
    seen = (case.evidence.process_at(pid) for pid, _, _ in produced.producers)
    needed = workers_needed(case, max(max_concurrent([process for process in seen if process], case.window), 1))
    prefetch = Fix(text="prefetch deeper, to even out single slow items", command="DataLoader(prefetch_factor=4)")
    more = Fix(text="run enough workers for the time that an item takes", command=f"DataLoader(num_workers={needed})")
    by_kind: dict[str, Callable[[], tuple[Fix, ...]]] = {
        ON_CPU: lambda: (_fix_for_computing(case, more, needed),),
        COLLECTING: lambda: (
            Fix(text="run the garbage collector less often in the worker", command="gc.freeze()  # in worker_init_fn"),
        ),
        PASSING: lambda: (
            Fix(text="pass tensors in shared memory instead of pickled objects; collate within the worker"),
        ),
        DISK: lambda: (more, Fix(text="or keep the data closer: page cache, local NVMe, larger records")),
        ASLEEP: lambda: (Fix(text="remove the sleep from the worker (a retry, a rate limit, a poll)"), more),
    }
    return (*by_kind.get(produced.worst, lambda: (more,))(), prefetch)


def _fix_for_computing(case: Case, more: Fix, needed: int) -> Fix:
    cpus = max((session.cpu_count for session in case.evidence.sessions), default=0)
    if cpus and needed >= cpus:
        return Fix(text=f"do less CPU work per item: {needed} workers would be needed, and this host has {cpus} CPUs")
    return more
