"""What the producers of data did while the GPU was empty: data workers, and threads that other threads wait for."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.findings import CodeLine, Culprit, FindingKind, Fix
from ingero.diagnose.offcpu.critical_path import GIL, Segment
from ingero.diagnose.samples.process_roles import at_once
from ingero.diagnose.samples.stack_samples import (
    MIN_SAMPLES,
    RUN,
    SLEEP,
    Doing,
    Spans,
    Stay,
    spans_of,
    spent,
    stays,
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
_STATES = {
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
_KINDS = {Doing.COLLECTING: COLLECTING, Doing.PASSING: PASSING}
_MINOR_BITS = 20  # of a device number as the kernel has it
_MAIN = 0.5  # of its running, before it is said to do something else than compute


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """What producers did from the begin of the waits, against zero from one item to the next, until they delivered.

    doing: ns by what, most first. producers: the threads with their ns, most first. line: where, doing the first.
    source: the disk or the process that they waited for; "" where they did not, or it is not known.
    """

    doing: tuple[tuple[str, int], ...]
    producers: tuple[tuple[int, str, int], ...]
    line: CodeLine | None
    source: str = ""

    @property
    def worst(self) -> str:
        """What took most of the time."""
        return self.doing[0][0]

    @property
    def total_ns(self) -> int:
        """All of it."""
        return sum(ns for _, ns in self.doing)

    @property
    def worst_share(self) -> float:
        """Of the time."""
        return self.doing[0][1] / max(self.total_ns, 1)

    @property
    def who(self) -> str:
        """The producer that was waited for most."""
        pid, name, _ = self.producers[0]
        return f"{name} [{pid}]"

    def culprits(self, lost_ns: int) -> tuple[Culprit, ...]:
        """The producers, with the lost time divided among them."""
        total = max(self.total_ns, 1)
        return tuple(Culprit(pid=pid, name=name, lost_ns=lost_ns * ns // total) for pid, name, ns in self.producers)


def production(case: Case, segments: Sequence[Segment]) -> Production:
    """What the producers on these pieces of paths did."""
    doing: Counter[str] = Counter()
    by_producer: Counter[tuple[int, str]] = Counter()
    for one in segments:
        doing[_doing(one)] += one.duration_ns
        by_producer[one.pid, case.thread_name(one)] += one.duration_ns
    running = [one for one in segments if _doing(one) == ON_CPU]
    at_work = _stays(case, running, RUN)
    _divide(doing, at_work)
    worst = doing.most_common(1)[0][0]
    chosen = [one for one in segments if _doing(one) == worst]
    kind = next((doing for doing, name in _KINDS.items() if name == worst), None)
    where = [one for one in at_work if kind in {None, one.doing}]
    if worst not in {ON_CPU, COLLECTING, PASSING}:
        where = _stays(case, chosen, SLEEP) if worst != "runnable" else _stays(case, segments, RUN)
    return Production(
        doing=tuple(doing.most_common()),
        producers=tuple((*key, ns) for key, ns in by_producer.most_common()),
        line=spent(where).line,
        source=_disk(case, chosen) if worst == DISK else _partner(case, chosen),
    )


def whole_cycles(case: Case, segments: Sequence[Segment]) -> Sequence[Segment]:
    """Against zero with what the producers did before, back to the item before: all of that makes an item late.

    When the loop begins to wait, part of it is over, and which part is chance of the order.
    """
    if case.kind is not FindingKind.BOTTLENECK:
        return segments
    producers = {one.tid for one in segments}
    cycle_ns = len(producers) * int(
        (case.sync_intervals["sync_end_ns"] - case.sync_intervals["prev_sync_end_ns"]).mean()
    )
    waits: dict[int, list[Segment]] = defaultdict(list)
    sync_intervals = np.searchsorted(case.sync_intervals["sync_end_ns"], [one.end_ns for one in segments]).tolist()
    for one, sync_interval in zip(segments, sync_intervals, strict=True):
        waits[sync_interval].append(one)
    found = list(segments)
    for mine in waits.values():
        first = min(mine, key=lambda one: one.begin_ns)
        left_ns = cycle_ns - sum(one.duration_ns for one in mine)
        before = case.evidence.waits.before(first, max(left_ns, 0))
        found += [one for one in before if one.tid in producers and one.pid in case.family]
    return found


def workers_of(case: Case, segments: Sequence[Segment]) -> tuple[int, ...]:
    """The pids of the other processes on these pieces of paths, in order."""
    return tuple(sorted({one.pid for one in segments} - {case.process.pid}))


def _disk(case: Case, segments: Sequence[Segment]) -> str:
    """The disk that these threads' reads took longest on, as major:minor."""
    times: Counter[int] = Counter()
    for process in {one.process for one in segments}:
        for one in case.evidence.events(case.window, (Source.IO,), process):
            times[int(one["arg2"])] += int(one["duration_ns"])
    if not times:
        return ""
    number = times.most_common(1)[0][0]
    return f"{number >> _MINOR_BITS}:{number & ((1 << _MINOR_BITS) - 1)}"


def _partner(case: Case, segments: Sequence[Segment]) -> str:
    """The process that these threads waited for longest, where there is one."""
    partners: Counter[int] = Counter()
    for one in segments:
        if one.waker_pid and one.waker_kind == "thread":
            partners[one.waker_pid] += one.duration_ns
    if not partners:
        return ""
    pid = partners.most_common(1)[0][0]
    return f"{case.evidence.waker_names.get(pid, 'pid')} [{pid}]"


def _doing(one: Segment) -> str:
    return _STATES.get((one.state, one.waker_kind), "waiting")


def _divide(doing: Counter[str], at_work: Sequence[Stay]) -> None:
    """What ran is named after what most of its samples did."""
    total = sum(one.ns for one in at_work)
    for kind, name in _KINDS.items():
        mine = sum(one.ns for one in at_work if one.doing is kind)
        if total and mine >= _MAIN * total and sum(one.count for one in at_work) >= MIN_SAMPLES:
            doing[name] = doing.pop(ON_CPU, 0)


def _stays(case: Case, segments: Sequence[Segment], state: int) -> list[Stay]:
    """Samples within the pieces; where those are too few, of these threads in the whole case, but for own waits.

    One look at a sleep says where that was; one sample of a running thread may be anywhere.
    """
    found = _stays_within(case, segments, spans_of(segments), state)
    if sum(one.count for one in found) >= (1 if state == SLEEP else MIN_SAMPLES):
        return found
    whole = (case.window.begin_ns, case.window.end_ns)
    more = _stays_within(case, segments, {one.tid: [whole] for one in segments}, state)
    return [one for one in more if not (waits_for_items(one.stack) or one.doing is Doing.PASSING)] or found


def _stays_within(case: Case, segments: Sequence[Segment], spans: Spans, state: int) -> list[Stay]:
    processes = {one.process for one in segments}
    found = [stay for one in processes for stay in stays(case.evidence, one, (case.window,), spans, state)]
    return [one for one in found if one.stack is not None]


def workers_needed(case: Case, workers: int) -> int:
    """How many that are as fast as these would keep the GPU busy."""
    lengths = case.sync_intervals["sync_end_ns"] - case.sync_intervals["prev_sync_end_ns"]
    now = float(lengths.mean())
    if case.kind is FindingKind.BOTTLENECK:
        wanted = now - float(case.sync_intervals["idle_ns"].mean())
    else:
        wanted = sum(
            one.reference.t_ns * int((case.sync_intervals["step_type"] == key).sum()) for key, one in case.usual.items()
        )
        wanted /= max(len(lengths), 1)
    return max(workers + 1, math.ceil(workers * now / max(wanted, 1.0)))


def fixes(case: Case, found: Production) -> tuple[Fix, ...]:
    """What to do about what took most of the time."""
    seen = (case.evidence.process_at(pid) for pid, _, _ in found.producers)
    needed = workers_needed(case, max(at_once([one for one in seen if one], case.window), 1))
    prefetch = Fix(text="prefetch deeper, to even out single slow items", command="DataLoader(prefetch_factor=4)")
    more = Fix(text="run enough workers for the time that an item takes", command=f"DataLoader(num_workers={needed})")
    by_kind: dict[str, Callable[[], tuple[Fix, ...]]] = {
        ON_CPU: lambda: (_more_or_less_work(case, more, needed),),
        COLLECTING: lambda: (
            Fix(text="run the garbage collector less often in the worker", command="gc.freeze()  # in worker_init_fn"),
        ),
        PASSING: lambda: (
            Fix(text="pass tensors in shared memory instead of pickled objects; collate within the worker"),
        ),
        DISK: lambda: (more, Fix(text="or keep the data closer: page cache, local NVMe, larger records")),
        ASLEEP: lambda: (Fix(text="remove the sleep from the worker (a retry, a rate limit, a poll)"), more),
    }
    return (*by_kind.get(found.worst, lambda: (more,))(), prefetch)


def _more_or_less_work(case: Case, more: Fix, needed: int) -> Fix:
    cpus = max((one.cpu_count for one in case.evidence.sessions), default=0)
    if cpus and needed >= cpus:
        return Fix(text=f"do less CPU work per item: {needed} workers would be needed, and this host has {cpus} CPUs")
    return more
