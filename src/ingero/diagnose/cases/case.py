"""What the rules look at: one process, one time range, and the lost time in buckets that wait for an owner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ingero.diagnose.cases.baseline_work import Growth
from ingero.diagnose.cases.case_paths import Paths, growth_of_workers, late_waits, paths, slowest
from ingero.diagnose.cases.host_cpu_time import HostStays, host_stays
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Affected, Bucket, CodeLine, Culprit, Finding, FindingKind, Moment, Part
from ingero.diagnose.lost_time.best_regime import Usual, reference_windows
from ingero.diagnose.lost_time.resync import Resynced
from ingero.diagnose.offcpu.critical_path import Segment
from ingero.diagnose.steps.pacing import is_step
from ingero.diagnose.steps.untraced_launches import is_unseen
from ingero.store.arrays.spans import joined, left_out, length_ns
from ingero.store.records import CulpritTotals, OpShare, Process, Window
from ingero.units import SECOND_NS, format_ns, format_percent

Array = np.ndarray[Any, np.dtype[Any]]


_MOSTLY = 0.5  # of the sync intervals of a case


@dataclass(frozen=True, slots=True, kw_only=True)
class OpChange:
    """One call, per sync interval of the main stream: in the case, and in the reference (0 where there is none).

    timed: of count, the calls that have a duration; the others were only counted.
    ns: inside those, without what held the thread up there (`events.HELD_UP`) and would have done so elsewhere.
    """

    totals: OpShare
    count: float
    usual_count: float
    timed: float
    usual_timed: float
    ns: float
    usual_ns: float
    size_bytes: float
    usual_bytes: float

    @property
    def grown_ns(self) -> float:
        """Per sync interval."""
        return self.ns - self.usual_ns

    @property
    def longer_ns(self) -> float:
        """Per sync interval, by calls that take longer than in the reference; 0 where that has none."""
        return self.ns - self.timed * self.usual_mean_ns if self.usual_timed else 0.0

    @property
    def mean_ns(self) -> float:
        """Of a call; 0 where none has a duration."""
        return self.ns / self.timed if self.timed else 0.0

    @property
    def usual_mean_ns(self) -> float:
        """Of a call in the reference; 0 where none has a duration there."""
        return self.usual_ns / self.usual_timed if self.usual_timed else 0.0


@dataclass(kw_only=True)
class Case:
    """A time range of one process's main stream that lost time, and what is still without an owner.

    sync intervals: whole ones (`store.arrays.SYNC_INTERVAL_DTYPE`): all of sync_interval_count, of very many a sample
    (see `is_sampled`).
    buckets: lost ns; for a bottleneck against zero. left: what of it no rule has claimed yet.
    """

    evidence: Evidence
    process: Process
    kind: FindingKind
    window: Window
    sync_intervals: Array
    sync_interval_count: int
    usual: Mapping[int, Usual]
    excess_ns: Array
    wall_ns: int
    lost_ns: int
    peak_ratio: float
    buckets: dict[Bucket, int]
    around_ns: int = 0  # wall time that a finding must be worth telling against; never less than wall_ns
    timeline: tuple[Moment, ...] = ()
    left: dict[Bucket, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    siblings: Sequence[Case] = ()  # every case of the window, this one, too
    _paths: dict[Part, Paths] = field(default_factory=dict, init=False, repr=False)
    is_recorders_start: bool = False  # what was lost after it is not worth telling
    resynced: Resynced | None = None  # its sync intervals are cut otherwise than in the reference: compared per launch

    def __post_init__(self) -> None:
        """Everything waits for an owner."""
        self.left = {bucket: ns for bucket, ns in self.buckets.items() if ns > 0}
        self.around_ns = max(self.around_ns, self.wall_ns)

    @property
    def device(self) -> int:
        """CUDA's ordinal of the GPU that its sync intervals are of; 0 without any."""
        return int(self.sync_intervals["device"][0]) if len(self.sync_intervals) else 0

    @property
    def is_of_steps(self) -> bool:
        """Whether its sync intervals are steps by repetition: when the GPU was idle within them is then unknown."""
        return bool(len(self.sync_intervals)) and bool(is_step(self.sync_intervals[:1])[0])

    @property
    def knows_idle(self) -> bool:
        """Whether it is known when the GPU was idle within its sync intervals: not in steps, nor where unseen."""
        return not self.is_of_steps and not (
            len(self.sync_intervals) and is_unseen(self.sync_intervals).mean() > _MOSTLY
        )

    @property
    def when_idle(self) -> str:
        """In which part of its sync intervals the host's time counts, as texts say it."""
        return "while the GPU was idle" if self.knows_idle else "outside calls that wait for the GPU"

    @property
    def when_starving(self) -> str:
        """As `when_idle`, and while the launches came too slowly."""
        return "while the GPU was idle or short of work" if self.knows_idle else self.when_idle

    @property
    def is_sampled(self) -> bool:
        """Whether the buckets were scaled up from some of the sync intervals; the lost time itself is always of all."""
        return len(self.sync_intervals) < self.sync_interval_count

    @property
    def scale(self) -> float:
        """Factor for what its whole sync intervals show, for all: some are a sample, and of an incident the worst."""
        if not self.is_sampled:
            return 1.0
        of_all, seen_ns = self.sync_interval_count / max(len(self.sync_intervals), 1), float(self.excess_ns.sum())
        if self.kind is FindingKind.BOTTLENECK or seen_ns <= 0:
            return of_all
        return min(max(self.lost_ns / seen_ns, 1.0), of_all)

    def count_of(self, step_type: int) -> float:
        """How many of all its sync intervals are of a class."""
        return (
            int((self.sync_intervals["step_type"] == step_type).sum())
            * self.sync_interval_count
            / max(len(self.sync_intervals), 1)
        )

    # Claims

    def take(self, parts: Iterable[Part], states: Iterable[str], limit_ns: float | None = None) -> dict[Bucket, int]:
        """What is left in these buckets, at most limit_ns of it (shared in proportion)."""
        wanted = {Bucket(part, state) for part in parts for state in states}
        mine = {bucket: ns for bucket, ns in self.left.items() if bucket in wanted and ns > 0}
        total = sum(mine.values())
        if limit_ns is None or total <= limit_ns:
            return mine
        return {bucket: int(ns * limit_ns / total) for bucket, ns in mine.items()} if limit_ns > 0 else {}

    def total(self, parts: Iterable[Part], states: Iterable[str]) -> int:
        """Lost in these buckets, claimed or not."""
        wanted = {Bucket(part, state) for part in parts for state in states}
        return sum(ns for bucket, ns in self.buckets.items() if bucket in wanted and ns > 0)

    def accept(self, finding: Finding) -> None:
        """Takes its claims out of what is left."""
        self.findings.append(finding)
        for bucket, ns in finding.claims.items():
            self.left[bucket] = self.left.get(bucket, 0) - ns

    def give_back(self, finding: Finding) -> None:
        """Leaves without an owner what a finding had claimed that turned out to be no cause by itself."""
        for bucket, ns in finding.claims.items():
            self.left[bucket] = self.left.get(bucket, 0) + ns

    @property
    def host_ns(self) -> int:
        """Lost in the host's parts of the sync intervals."""
        return sum(ns for bucket, ns in self.buckets.items() if bucket.part is not Part.GPU)

    @property
    def can_judge_device(self) -> bool:
        """Whether most of its sync intervals are of classes that repeat well enough for a verdict on the GPU."""
        steady = [key for key, one in self.usual.items() if one.reference.can_judge_device]
        return (
            float(np.isin(self.sync_intervals["step_type"], steady).mean()) > 0.5 if len(self.sync_intervals) else False
        )

    def ratio(self, ns: float) -> float:
        """Share of the wall time of the case."""
        return ns / max(self.wall_ns, 1)

    @property
    def who(self) -> str:
        """The process as texts name it, with its scheduler's job."""
        job = self.evidence.job_of(self.process.pid)
        return f"{self.process.name} [{self.process.pid}]" + (f" of {job}" if job else "")

    @property
    def noun(self) -> str:
        """What the process is judged by: `step` or `sync interval`."""
        return self.evidence.main_streams[self.process.process].noun

    def amount(self, ns: float) -> str:
        """Lost time as texts say it: "1.6 s (27% of wall time)"."""
        return f"{format_ns(int(ns))} ({format_percent(self.ratio(ns))} of wall time)"

    @property
    def affected(self) -> Affected:
        """The process as an affected process."""
        one = self.process
        return Affected(
            process=one.process,
            pid=one.pid,
            name=one.name,
            lost_ns=self.lost_ns,
            rank=one.rank,
            container=self.evidence.container_of(one.cgroup_id),
            job=self.evidence.job_of(one.pid, one.cgroup_id),
        )

    # Evidence of this time range

    @cached_property
    def family(self) -> set[int]:
        """Pids of the process and of its workers."""
        return self.evidence.family(self.process.process)

    @cached_property
    def members(self) -> list[int]:
        """Numbers of the process and of its workers."""
        return [one.process for one in self.evidence.processes.values() if one.pid in self.family]

    @cached_property
    def job(self) -> set[int]:
        """The same with the ranks that it trains with, and theirs: none of them is a stranger to it."""
        return self.evidence.job(self.process.process)

    @cached_property
    def baselines(self) -> tuple[Window, ...]:
        """Where the references come from; empty against zero.

        Only those of the kinds of sync interval that hold most of the lost time: another kind may have been at its best
        within the incident, and what the process called meanwhile is no reference.
        """
        return reference_windows(self.usual, self._losing()) if self.kind is FindingKind.INCIDENT else ()

    @cached_property
    def all_baselines(self) -> tuple[Window, ...]:
        """Where the references of all kinds of sync interval come from: for what is sampled only once a second."""
        return reference_windows(self.usual) if self.kind is FindingKind.INCIDENT else ()

    def _losing(self) -> list[int]:
        """The fewest kinds of sync interval that hold most of the lost time; none where none lost any."""
        keys, places = np.unique(self.sync_intervals["step_type"], return_inverse=True)
        lost = np.bincount(places, weights=self.excess_ns, minlength=len(keys))
        order = [at for at in np.argsort(-lost).tolist() if int(keys[at]) in self.usual and lost[at] > 0]
        most = 1 + int(np.searchsorted(np.cumsum(lost[order]), _MOSTLY * lost[order].sum()))
        return [int(keys[at]) for at in order[:most]]

    @cached_property
    def time_ranges(self) -> tuple[Window, ...]:
        """The time that it is about: its window, of a bottleneck without the incidents that lie in it.

        The best seconds of all may lie within one, between two that lost more.
        """
        if self.kind is FindingKind.INCIDENT:
            return (self.window,)
        mine = (one for one in self.siblings if one.process.process == self.process.process)
        return left_out(self.window, (one.window for one in mine if one.kind is FindingKind.INCIDENT)) or (self.window,)

    @cached_property
    def cpu_users(self) -> list[Culprit]:
        """Who ran while the process or one of its workers waited to run, most time first."""
        return self.culprits(self.members)

    def path_share(self, part: Part, is_mine: Callable[[Segment], bool]) -> float:
        """Of the sleep on the critical path in the part, the share of the segments that are meant."""
        return self.paths(part).share(is_mine)

    def take_path(self, is_mine: Callable[[Segment], bool], share: float = 1.0) -> dict[Bucket, int]:
        """The sleep before and while launching that went into the segments that are meant, of what is left of it.

        share: of that.
        """
        taken: dict[Bucket, int] = {}
        for part in (Part.IDLE, Part.LAUNCH):
            wanted = self.total((part,), ("sleep",)) * self.path_share(part, is_mine) * share
            if wanted:
                taken |= self.take((part,), ("sleep",), wanted)
        return {bucket: ns for bucket, ns in taken.items() if ns > 0}

    def take_state(self, state: str, share: float = 1.0) -> dict[Bucket, int]:
        """The same of all that whoever was waited for spent in one state."""
        return self.take_path(lambda one: one.state == state and one.waker_kind == "none", share)

    def culprits(self, processes: Iterable[int] | None = None) -> list[Culprit]:
        """Who ran while these (default: the process itself) waited to run, most time first; beyond the usual rate.

        Pid 0 is an idle CPU, -1 nobody who could be named.
        """
        numbers = [self.process.process] if processes is None else list(processes)
        found = []
        usual = self._charges(numbers, self.baselines)
        scale = length_ns(self.time_ranges) / max(length_ns(self.baselines), 1)
        for pid, charges in self._charges(numbers, self.time_ranges).items():
            most = max(charges, key=lambda one: one.ns)  # a process that has just started runs under its parent's name
            grown = sum(one.ns for one in charges) - scale * sum(one.ns for one in usual.get(pid, ()))
            if grown > 0:
                one = Culprit(
                    pid=pid,
                    name=most.culprit_name,
                    lost_ns=int(grown),
                    switches=sum(one.switches for one in charges),
                    container=self.evidence.container_of(most.culprit_cgroup_id),
                    job=self.evidence.job_of(pid, most.culprit_cgroup_id),
                )
                found.append(one)
        return sorted(found, key=lambda one: -one.lost_ns)

    def _charges(self, numbers: Sequence[int], windows: Iterable[Window]) -> dict[int, list[CulpritTotals]]:
        found: dict[int, list[CulpritTotals]] = defaultdict(list)
        windows = tuple(windows)
        for number in numbers:
            for one in self.evidence.culprits(windows, number):
                found[one.culprit_pid].append(one)
        return found

    @cached_property
    def op_changes(self) -> list[OpChange]:
        """The calls of the process per sync interval against the reference, largest growth first.

        Calls are counted by the second: what lies beside the case in its first and last second is taken as usual.
        Against zero they are those of the best regime alone, whatever an incident between its time ranges called.
        """
        if self.kind is FindingKind.BOTTLENECK and self.usual:
            at_best, count = self._calls_in(reference_windows(self.usual))
            best = [_change(one, max(count, 1), None, 1, 0) for one in at_best.values()]
            return sorted(best, key=lambda one: -one.grown_ns)
        usual, sync_intervals = self._calls_in(self.baselines)
        (span,) = self.evidence.reader.op_spans((self.window,), process=self.process.process)
        beside = self.sync_intervals_in(span) - self.sync_interval_count if self.baselines else 0
        now = self.evidence.ops((span,), self.process.process)
        mine, theirs = max(self.sync_interval_count, 1), max(sync_intervals, 1)
        changes = [_change(one, mine, usual.get((one.source, one.op)), theirs, max(beside, 0)) for one in now]
        return sorted(changes, key=lambda one: -one.grown_ns)

    def _calls_in(self, windows: Iterable[Window]) -> tuple[dict[tuple[int, int], OpShare], int]:
        """The calls of time ranges by operation, and how many sync intervals they are of.

        Of one shorter than a second whole seconds: idle time was cut out of it, and its share of a second's calls
        would be less by that.
        """
        reader, number = self.evidence.reader, self.process.process
        windows = tuple(windows)
        short = tuple(one for one in windows if one.duration_ns < SECOND_NS)
        long = (one for one in windows if one.duration_ns >= SECOND_NS)
        spans = joined((*reader.op_spans(short, process=number), *long))
        calls = {(one.source, one.op): one for one in self.evidence.ops(spans, number)}
        return calls, sum(map(self.sync_intervals_in, spans))

    def sync_intervals_in(self, window: Window) -> int:
        """How many of the main stream's ended in a window."""
        return len(self.evidence.gpu_stream_in(window, self.process.process))

    @property
    def empty_paths(self) -> Sequence[Segment]:
        """What the syncing thread's sleeps with an empty device went into, in the sync intervals that lost most."""
        return self.paths(Part.IDLE).segments

    @property
    def enqueue_paths(self) -> Sequence[Segment]:
        """What the sleeps between the first enqueue and the sync went into: of the enqueuing thread."""
        return self.paths(Part.LAUNCH).segments

    @property
    def waits(self) -> tuple[Segment, ...]:
        """Both: what its threads slept for before the last launch of a step."""
        return (*self.empty_paths, *self.enqueue_paths)

    @cached_property
    def late_waits(self) -> Sequence[Segment]:
        """What the syncing thread waited for between the GPU's end and its return, in the latest sync intervals."""
        return late_waits(self)

    @cached_property
    def host_stays(self) -> HostStays:
        """Where the critical-path threads were, outside calls, in its sync intervals and in those of the reference."""
        return host_stays(self)

    def paths(self, part: Part) -> Paths:
        """The paths of the waits before or while launching."""
        if part not in self._paths:
            self._paths[part] = paths(self, part, self._slowest, self._growth)
        return self._paths[part]

    @cached_property
    def _growth(self) -> Growth:
        return growth_of_workers(self)

    @cached_property
    def _slowest(self) -> Array:
        return slowest(self.sync_intervals, self.excess_ns)

    def line_of(self, change: OpChange) -> CodeLine | None:
        """The workload's own line that spent most of the recorded time of these calls in the case."""
        return self.evidence.call_line(self.window, self.process.process, change.totals.source, change.totals.op)

    def thread_name(self, segment: Segment) -> str:
        """Its name."""
        return self.evidence.text(segment.comm)


def _change(
    one: OpShare, sync_intervals: int, usual: OpShare | None, usual_sync_intervals: int, beside: int
) -> OpChange:
    def per_sync_interval(total: float, usual_total: float) -> tuple[float, float]:
        reference = usual_total / usual_sync_intervals
        return max(total - reference * beside, 0.0) / sync_intervals, reference

    count, usual_count = per_sync_interval(one.count, usual.count if usual else 0.0)
    timed, usual_timed = per_sync_interval(one.timed, usual.timed if usual else 0.0)
    ns, usual_ns = per_sync_interval(one.own_ns, usual.own_ns if usual else 0.0)
    size_bytes, usual_bytes = per_sync_interval(one.bytes, usual.bytes if usual else 0.0)
    return OpChange(
        totals=one,
        count=count,
        usual_count=usual_count,
        timed=timed,
        usual_timed=usual_timed,
        ns=ns,
        usual_ns=usual_ns,
        size_bytes=size_bytes,
        usual_bytes=usual_bytes,
    )
