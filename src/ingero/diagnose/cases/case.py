"""What the rules examine: a time range of one process, with its lost time in buckets that rules claim."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ingero.diagnose.cases.baseline_work import WorkGrowth
from ingero.diagnose.cases.case_paths import Paths, growth_of_workers, late_waits, paths, slowest
from ingero.diagnose.cases.host_cpu_time import HostSampleGroups, host_sample_groups
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import (
    Affected,
    Bucket,
    CodeLine,
    Culprit,
    Finding,
    FindingKind,
    Moment,
    Part,
    share_of_wall_time,
)
from ingero.diagnose.lost_time.best_regime import ClassReference, reference_windows
from ingero.diagnose.lost_time.resync import Resync
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.steps.pacing import is_step
from ingero.diagnose.steps.untraced_launches import are_launches_unknown, has_untraced_launches
from ingero.store.arrays.spans import joined, left_out, length_ns
from ingero.store.records import CulpritTotals, OpShare, Process, Window
from ingero.units import SECOND_NS, format_ns, format_percent

Array = np.ndarray[Any, np.dtype[Any]]


_MAJORITY = 0.5  # of the sync intervals of a case, or of its lost time


@dataclass(frozen=True, slots=True, kw_only=True)
class OpChange:
    """One call per sync interval of the main stream, in the case and in its baseline (0 without a baseline).

    timed: the calls that have a duration; the rest of `count` were only counted.
    ns: time inside timed calls, without what would have held the thread up elsewhere too (`events.HELD_UP`).
    """

    totals: OpShare
    count: float
    baseline_count: float
    timed: float
    baseline_timed: float
    ns: float
    baseline_ns: float
    size_bytes: float
    baseline_bytes: float

    @property
    def grown_ns(self) -> float:
        """Growth of the time inside the calls, per sync interval."""
        return self.ns - self.baseline_ns

    @property
    def longer_ns(self) -> float:
        """Growth by longer calls alone, per sync interval; 0 where the baseline has no timed call."""
        return self.ns - self.timed * self.baseline_mean_ns if self.baseline_timed else 0.0

    @property
    def mean_ns(self) -> float:
        """Mean duration of a call; 0 where none has a duration."""
        return self.ns / self.timed if self.timed else 0.0

    @property
    def baseline_mean_ns(self) -> float:
        """Mean duration of a call in the baseline; 0 where none has a duration there."""
        return self.baseline_ns / self.baseline_timed if self.baseline_timed else 0.0


@dataclass(kw_only=True)
class Case:
    """A time range of one process's main stream that lost time, with the lost time that no rule has claimed yet.

    sync_intervals: whole ones (`store.arrays.SYNC_INTERVAL_DTYPE`), all of sync_interval_count or a sample of very
    many (see `is_sampled`). references: by step type. buckets: lost ns; of a bottleneck against zero. unclaimed: the
    part of `buckets` that no rule has claimed yet.
    """

    evidence: Evidence
    process: Process
    kind: FindingKind
    window: Window
    sync_intervals: Array
    sync_interval_count: int
    references: Mapping[int, ClassReference]
    excess_ns: Array
    wall_ns: int
    lost_ns: int
    peak_ratio: float
    buckets: dict[Bucket, int]
    surrounding_wall_ns: int = 0  # wall time that lost time must be worth reporting against; at least wall_ns
    timeline: tuple[Moment, ...] = ()
    unclaimed: dict[Bucket, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    siblings: Sequence[Case] = ()  # every case of the window, including this one
    _paths: dict[Part, Paths] = field(default_factory=dict, init=False, repr=False)
    is_agent_start: bool = False  # what was lost after the agent had started is not worth reporting
    is_lower_bound: bool = False  # the host may have kept the GPU waiting longer than is proven
    is_part_known: bool = False  # of the window: the sync intervals are those in which launches were traced
    resync: Resync | None = None  # sync intervals end at other calls than in the baseline: compared per launch

    def __post_init__(self) -> None:
        """At first all lost time is unclaimed."""
        self.unclaimed = {bucket: ns for bucket, ns in self.buckets.items() if ns > 0}
        self.surrounding_wall_ns = max(self.surrounding_wall_ns, self.wall_ns)

    @property
    def device(self) -> int:
        """CUDA device ordinal of its sync intervals' GPU; 0 without sync intervals."""
        return int(self.sync_intervals["device"][0]) if len(self.sync_intervals) else 0

    @property
    def is_of_steps(self) -> bool:
        """Whether its sync intervals are steps by repetition, in which the time of GPU idle is not known."""
        return bool(len(self.sync_intervals)) and bool(is_step(self.sync_intervals[:1])[0])

    @property
    def knows_idle(self) -> bool:
        """Whether it is known when the GPU was idle: not in steps by repetition, nor where launches are untraced."""
        return not self.is_of_steps and not (
            len(self.sync_intervals) and has_untraced_launches(self.sync_intervals).mean() > _MAJORITY
        )

    @property
    def knows_launches(self) -> bool:
        """Whether the launches in most of its sync intervals or steps were traced."""
        return not are_launches_unknown(self.sync_intervals).mean() > _MAJORITY if len(self.sync_intervals) else True

    @property
    def when_idle(self) -> str:
        """The part of its sync intervals in which host time counts, as texts say it."""
        return "while the GPU was idle" if self.knows_idle else "outside calls that wait for the GPU"

    @property
    def when_starving(self) -> str:
        """`when_idle`, or while the launches came too slowly, as texts say it."""
        return "while the GPU was idle or short of work" if self.knows_idle else self.when_idle

    @property
    def is_sampled(self) -> bool:
        """Whether the buckets were scaled up from a sample of the sync intervals; the lost time is always of all."""
        return len(self.sync_intervals) < self.sync_interval_count

    @property
    def scale(self) -> float:
        """Factor from the whole sync intervals to all of them; the sample of an incident holds its worst ones."""
        if not self.is_sampled:
            return 1.0
        of_all, seen_ns = self.sync_interval_count / max(len(self.sync_intervals), 1), float(self.excess_ns.sum())
        if self.kind is FindingKind.BOTTLENECK or seen_ns <= 0:
            return of_all
        return min(max(self.lost_ns / seen_ns, 1.0), of_all)

    def count_of(self, step_type: int) -> float:
        """How many of all its sync intervals have this step type."""
        return (
            int((self.sync_intervals["step_type"] == step_type).sum())
            * self.sync_interval_count
            / max(len(self.sync_intervals), 1)
        )

    # Claims

    def claimable(
        self, parts: Iterable[Part], states: Iterable[str], limit_ns: float | None = None
    ) -> dict[Bucket, int]:
        """The unclaimed lost time in these buckets, at most limit_ns (divided in proportion). It claims nothing yet."""
        wanted = {Bucket(part, state) for part in parts for state in states}
        available = {bucket: ns for bucket, ns in self.unclaimed.items() if bucket in wanted and ns > 0}
        total = sum(available.values())
        if limit_ns is None or total <= limit_ns:
            return available
        return {bucket: int(ns * limit_ns / total) for bucket, ns in available.items()} if limit_ns > 0 else {}

    def total(self, parts: Iterable[Part], states: Iterable[str]) -> int:
        """Lost time in these buckets, claimed or not, ns."""
        wanted = {Bucket(part, state) for part in parts for state in states}
        return sum(ns for bucket, ns in self.buckets.items() if bucket in wanted and ns > 0)

    def accept(self, finding: Finding) -> None:
        """Adds a finding and takes its claims out of the unclaimed time."""
        self.findings.append(finding)
        for bucket, ns in finding.claims.items():
            self.unclaimed[bucket] = self.unclaimed.get(bucket, 0) - ns

    def release_claims(self, finding: Finding) -> None:
        """Makes the claims of a finding unclaimed again, because it is no cause by itself."""
        for bucket, ns in finding.claims.items():
            self.unclaimed[bucket] = self.unclaimed.get(bucket, 0) + ns

    @property
    def host_ns(self) -> int:
        """Lost time in the host's parts of the sync intervals, ns."""
        return sum(ns for bucket, ns in self.buckets.items() if bucket.part is not Part.GPU)

    @property
    def can_judge_gpu(self) -> bool:
        """Whether most of its sync intervals are of step types steady enough for a verdict on the GPU."""
        steady = [step_type for step_type, best in self.references.items() if best.reference.can_judge_gpu]
        is_steady = np.isin(self.sync_intervals["step_type"], steady)
        return float(is_steady.mean()) > _MAJORITY if len(is_steady) else False

    def ratio(self, ns: float) -> float:
        """This time as a share of the case's wall time."""
        return ns / max(self.wall_ns, 1)

    @property
    def who(self) -> str:
        """The process as texts name it, with its batch job if it has one."""
        job = self.evidence.job_of(self.process.pid)
        return f"{self.process.name} [{self.process.pid}]" + (f" of {job}" if job else "")

    @property
    def noun(self) -> str:
        """What the process is judged by: `step` or `sync interval`."""
        return self.evidence.main_streams[self.process.process].noun

    def amount(self, ns: float) -> str:
        """Lost time as texts say it: "1.6 s (27% of wall time)", "at least 1.6 s (27% of wall time)"."""
        of = share_of_wall_time(self.wall_ns if self.is_part_known else None)
        least = "at least " if self.is_lower_bound else ""
        return f"{least}{format_ns(int(ns))} ({format_percent(self.ratio(ns))} {of})"

    @property
    def affected(self) -> Affected:
        """The process as an affected process."""
        process = self.process
        return Affected(
            process=process.process,
            pid=process.pid,
            name=process.name,
            lost_ns=self.lost_ns,
            rank=process.rank,
            container=self.evidence.container_of(process.cgroup_id),
            job=self.evidence.job_of(process.pid, process.cgroup_id),
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
        """Pids of the process, of the ranks that it trains with, and of the workers of all these."""
        return self.evidence.job(self.process.process)

    @cached_property
    def baseline_windows(self) -> tuple[Window, ...]:
        """The time ranges that the references come from; empty for a bottleneck, which is compared with zero.

        Only those of the step types that hold most of the lost time: another type may have been at its best within the
        incident, and what the process called meanwhile is no reference.
        """
        return reference_windows(self.references, self._losing()) if self.kind is FindingKind.INCIDENT else ()

    @cached_property
    def all_baseline_windows(self) -> tuple[Window, ...]:
        """The time ranges of the references of all step types: for data that is sampled only once a second."""
        return reference_windows(self.references) if self.kind is FindingKind.INCIDENT else ()

    def _losing(self) -> list[int]:
        """The fewest step types that hold most of the lost time; none where none lost any."""
        keys, places = np.unique(self.sync_intervals["step_type"], return_inverse=True)
        lost = np.bincount(places, weights=self.excess_ns, minlength=len(keys))
        order = [at for at in np.argsort(-lost).tolist() if int(keys[at]) in self.references and lost[at] > 0]
        count = 1 + int(np.searchsorted(np.cumsum(lost[order]), _MAJORITY * lost[order].sum()))
        return [int(keys[at]) for at in order[:count]]

    @cached_property
    def time_ranges(self) -> tuple[Window, ...]:
        """The time that the case is about: its window, of a bottleneck without the incidents inside.

        The best seconds of all may lie within an incident, between two seconds that lost more.
        """
        if self.kind is FindingKind.INCIDENT:
            return (self.window,)
        mine = (case for case in self.siblings if case.process.process == self.process.process)
        incidents = (case.window for case in mine if case.kind is FindingKind.INCIDENT)
        return left_out(self.window, incidents) or (self.window,)

    @cached_property
    def cpu_users(self) -> list[Culprit]:
        """Processes that ran while this process or one of its workers waited for a CPU, most time first."""
        return self.culprits(self.members)

    def path_share(self, part: Part, is_mine: Callable[[PathSegment], bool]) -> float:
        """The share of these segments in the sleep on the critical path of a part, 0 to 1."""
        return self.paths(part).share(is_mine)

    def claimable_on_path(self, is_mine: Callable[[PathSegment], bool], share: float = 1.0) -> dict[Bucket, int]:
        """The unclaimed sleep before and while launching that these path segments explain. share: of that, 0 to 1."""
        claims: dict[Bucket, int] = {}
        for part in (Part.IDLE, Part.LAUNCH):
            wanted = self.total((part,), ("sleep",)) * self.path_share(part, is_mine) * share
            if wanted:
                claims |= self.claimable((part,), ("sleep",), wanted)
        return {bucket: ns for bucket, ns in claims.items() if ns > 0}

    def claimable_in_state(self, state: str, share: float = 1.0) -> dict[Bucket, int]:
        """The unclaimed sleep that the time of the waited-for threads in one state explains. share: of that, 0 to 1."""
        return self.claimable_on_path(lambda piece: piece.state == state and piece.waker_kind == "none", share)

    def culprits(self, processes: Iterable[int] | None = None) -> list[Culprit]:
        """Processes that ran while these (default: the process itself) waited for a CPU, beyond the baseline's rate.

        Most time first. Pid 0 is an idle CPU, -1 a process that could not be named.
        """
        numbers = [self.process.process] if processes is None else list(processes)
        found = []
        baseline = self._culprit_totals(numbers, self.baseline_windows)
        scale = length_ns(self.time_ranges) / max(length_ns(self.baseline_windows), 1)
        for pid, totals in self._culprit_totals(numbers, self.time_ranges).items():
            most = max(totals, key=lambda total: total.ns)  # a process that just started runs under its parent's name
            grown = sum(total.ns for total in totals) - scale * sum(total.ns for total in baseline.get(pid, ()))
            if grown > 0:
                culprit = Culprit(
                    pid=pid,
                    name=most.culprit_name,
                    lost_ns=int(grown),
                    switches=sum(total.switches for total in totals),
                    container=self.evidence.container_of(most.culprit_cgroup_id),
                    job=self.evidence.job_of(pid, most.culprit_cgroup_id),
                )
                found.append(culprit)
        return sorted(found, key=lambda culprit: -culprit.lost_ns)

    def _culprit_totals(self, numbers: Sequence[int], windows: Iterable[Window]) -> dict[int, list[CulpritTotals]]:
        found: dict[int, list[CulpritTotals]] = defaultdict(list)
        windows = tuple(windows)
        for number in numbers:
            for total in self.evidence.culprits(windows, number):
                found[total.culprit_pid].append(total)
        return found

    @cached_property
    def op_changes(self) -> list[OpChange]:
        """The calls of the process per sync interval beside the baseline, largest growth first.

        Calls are counted by the second: the part of the first and last second outside the case counts as baseline. For
        a bottleneck they are the calls of the best regime alone, without those of incidents between its time ranges.
        """
        if self.kind is FindingKind.BOTTLENECK and self.references:
            at_best, count = self._calls_in(reference_windows(self.references))
            best = [_change(calls, max(count, 1), None, 1, 0) for calls in at_best.values()]
            return sorted(best, key=lambda change: -change.grown_ns)
        baseline, sync_intervals = self._calls_in(self.baseline_windows)
        (span,) = self.evidence.reader.op_spans((self.window,), process=self.process.process)
        beside = self.sync_intervals_in(span) - self.sync_interval_count if self.baseline_windows else 0
        now = self.evidence.ops((span,), self.process.process)
        mine, theirs = max(self.sync_interval_count, 1), max(sync_intervals, 1)
        changes = [_change(one, mine, baseline.get((one.source, one.op)), theirs, max(beside, 0)) for one in now]
        return sorted(changes, key=lambda change: -change.grown_ns)

    def _calls_in(self, windows: Iterable[Window]) -> tuple[dict[tuple[int, int], OpShare], int]:
        """The calls of time ranges by operation, and the number of sync intervals that made them.

        A range shorter than a second counts as whole seconds: idle time was cut out of it, so that its share of a
        second's calls would be too small.
        """
        reader, number = self.evidence.reader, self.process.process
        windows = tuple(windows)
        short = tuple(window for window in windows if window.duration_ns < SECOND_NS)
        long = (window for window in windows if window.duration_ns >= SECOND_NS)
        spans = joined((*reader.op_spans(short, process=number), *long))
        calls = {(op.source, op.op): op for op in self.evidence.ops(spans, number)}
        return calls, sum(map(self.sync_intervals_in, spans))

    def sync_intervals_in(self, window: Window) -> int:
        """How many of the main stream's sync intervals ended in a window."""
        return len(self.evidence.gpu_stream_in(window, self.process.process))

    @property
    def idle_paths(self) -> Sequence[PathSegment]:
        """Path segments of the syncing thread's sleep while the GPU was idle, of the intervals that lost most."""
        return self.paths(Part.IDLE).segments

    @property
    def launch_paths(self) -> Sequence[PathSegment]:
        """Path segments of the launching thread's sleep from first launch to sync, of the intervals that lost most."""
        return self.paths(Part.LAUNCH).segments

    @property
    def waits(self) -> tuple[PathSegment, ...]:
        """`idle_paths` and `launch_paths`: what its threads slept for before the last launch of a step."""
        return (*self.idle_paths, *self.launch_paths)

    @cached_property
    def late_waits(self) -> Sequence[PathSegment]:
        """Path segments of the syncing thread's waits after the GPU was done, of the intervals delayed most."""
        return late_waits(self)

    @cached_property
    def host_sample_groups(self) -> HostSampleGroups:
        """Samples of the critical-path threads outside calls, in the case's sync intervals and in the baseline's."""
        return host_sample_groups(self)

    def paths(self, part: Part) -> Paths:
        """The critical paths of the waits in a part: before launching (IDLE) or while launching (LAUNCH)."""
        if part not in self._paths:
            self._paths[part] = paths(self, part, self._slowest, self._growth)
        return self._paths[part]

    @cached_property
    def _growth(self) -> WorkGrowth:
        return growth_of_workers(self)

    @cached_property
    def _slowest(self) -> Array:
        return slowest(self.sync_intervals, self.excess_ns)

    def line_of(self, change: OpChange) -> CodeLine | None:
        """The workload's own line with most of the recorded time of these calls in the case."""
        return self.evidence.call_line(self.window, self.process.process, change.totals.source, change.totals.op)

    def thread_name(self, segment: PathSegment) -> str:
        """The name of the thread of a path segment."""
        return self.evidence.text(segment.comm)


def _change(
    op: OpShare, sync_intervals: int, baseline: OpShare | None, baseline_sync_intervals: int, beside: int
) -> OpChange:
    def per_sync_interval(total: float, baseline_total: float) -> tuple[float, float]:
        reference = baseline_total / baseline_sync_intervals
        return max(total - reference * beside, 0.0) / sync_intervals, reference

    count, baseline_count = per_sync_interval(op.count, baseline.count if baseline else 0.0)
    timed, baseline_timed = per_sync_interval(op.timed, baseline.timed if baseline else 0.0)
    ns, baseline_ns = per_sync_interval(op.own_ns, baseline.own_ns if baseline else 0.0)
    size_bytes, baseline_bytes = per_sync_interval(op.bytes, baseline.bytes if baseline else 0.0)
    return OpChange(
        totals=op,
        count=count,
        baseline_count=baseline_count,
        timed=timed,
        baseline_timed=baseline_timed,
        ns=ns,
        baseline_ns=baseline_ns,
        size_bytes=size_bytes,
        baseline_bytes=baseline_bytes,
    )
