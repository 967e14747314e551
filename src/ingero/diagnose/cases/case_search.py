"""The search for cases: time ranges in which a process lost time, and bottlenecks that keep its GPU waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ingero.diagnose.cases.against_zero import (
    capped_by_nvml,
    host_lengths,
    host_wait_buckets,
    idle_at_least_ns,
    proven_idle,
    run_while_idle_ns,
)
from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.own_time import own_run_share, with_own_time
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.nvml_utilization import Utilization, utilization_of
from ingero.diagnose.findings import Bucket, FindingKind, Part
from ingero.diagnose.lost_time.agent_start import is_agent_start, settled_at_ns
from ingero.diagnose.lost_time.best_regime import (
    ClassReference,
    at_best,
    class_references,
    reference_windows,
    with_thread_states,
)
from ingero.diagnose.lost_time.buckets import buckets
from ingero.diagnose.lost_time.interval_sampling import sample_windows, weighted_windows
from ingero.diagnose.lost_time.no_demand import no_demand_ns, without_no_demand
from ingero.diagnose.lost_time.resync import Resync, find_resync, has_same_shares, is_same_work_per_launch, lost_buckets
from ingero.diagnose.lost_time.time_ranges import (
    MIN_LOST_NS,
    MIN_SINGLE_STALL_NS,
    TimeRange,
    excess_ns,
    losing_ranges,
    starts_losing_time,
)
from ingero.diagnose.lost_time.timeline import timeline
from ingero.diagnose.steps.pacing import is_step
from ingero.diagnose.steps.untraced_launches import has_untraced_launches
from ingero.events import SyncIntervalFlag
from ingero.store.arrays.spans import Spans, left_out, length_ns
from ingero.store.records import Process, Window

Array = np.ndarray[Any, np.dtype[Any]]

BOTTLENECK_RATIO = 0.10  # of wall time against zero, before a share of it is called a bottleneck
WORK_RATIO = 0.25  # of all time computing and launching, before that is called a bottleneck
_MIN_KNOWN_NS = 500_000_000  # with all launches traced, where they are not at other times, to say what they show
_WARM_UP_NS = 500_000_000  # from a program's first sync on, in which it fills caches and starts workers
_BRIEF_NS = 5_000_000_000  # from the first sync interval to the last one of an ended process
_MAX_STALL_NS = 3_000_000_000  # a loop that has stood still for longer may be over or idle, which is not urgent
_MAJORITY = 0.5  # of the sync intervals of a case
_RUN_OF_STEP = Bucket(Part.IDLE, "run")


def find_cases(evidence: Evidence) -> list[Case]:
    """Time ranges in which processes lost time against their best regime, then the bottlenecks of that regime."""
    search = CaseSearch(evidence)
    return [*search.incidents(), *search.bottlenecks()]


class CaseSearch:
    """The cases of a window by kind, so that a live diagnosis need not search for bottlenecks in each pass.

    In a live diagnosis short-lived processes have no cases: hundreds of them would take all of its time.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._gpu_streams: list[_GpuStream] = []
        for number, gpu_stream in evidence.gpu_streams.items():
            process = evidence.processes.get(number)
            if process is not None and len(gpu_stream) and not (evidence.is_live and _was_brief(process, gpu_stream)):
                self._gpu_streams.append(_GpuStream(evidence, process, gpu_stream))

    def incidents(self) -> list[Case]:
        """The time ranges that lost time against the best regime."""
        return [case for gpu_stream in self._gpu_streams for case in gpu_stream.incidents()]

    def has_onset(self) -> bool:
        """Whether a stream starts to lose time or stands still, and has not lost enough to be a case."""
        return any(gpu_stream.starts_losing_time() or gpu_stream.is_stalled_now() for gpu_stream in self._gpu_streams)

    def bottlenecks(self) -> list[Case]:
        """What keeps a GPU waiting even in the best regime."""
        return [case for gpu_stream in self._gpu_streams if (case := gpu_stream.bottleneck())]


def _was_brief(process: Process, gpu_stream: Array) -> bool:
    return (
        process.exit_ns is not None
        and int(gpu_stream["sync_end_ns"][-1] - gpu_stream["prev_sync_end_ns"][0]) < _BRIEF_NS
    )


class _GpuStream:
    """The main stream of one process, without time in which no work was requested."""

    def __init__(self, evidence: Evidence, process: Process, gpu_stream: Array) -> None:
        self._evidence, self._process = evidence, process
        self._ends = np.ascontiguousarray(gpu_stream["sync_end_ns"])
        self._idle = no_demand_ns(evidence, process, gpu_stream)
        self._sync_intervals, self._elapsed_ns = (
            without_no_demand(gpu_stream, self._idle),
            gpu_stream["sync_end_ns"] - gpu_stream["prev_sync_end_ns"],
        )
        self._started_ns = settled_at_ns(evidence, process.session)
        found = find_resync(self._sync_intervals)
        self._resync_case = self._case_of_resync(found) if found and found.is_enough else None
        self._has_resync_onset = found is not None and found.is_onset(int(self._ends[-1]), since_ns=self._started_ns)
        if found and self._resync_case:
            self._sync_intervals, self._elapsed_ns = (
                self._sync_intervals[~found.inside],
                self._elapsed_ns[~found.inside],
            )
        self._references = class_references(self._sync_intervals)
        self._with_own: dict[int, ClassReference] | None = None  # of incidents, once their thread states are read
        self._excess = excess_ns(self._sync_intervals, self._references)
        self._time_ranges = losing_ranges(
            self._sync_intervals, self._references, self._excess, apart_ns=self._started_ns
        )

    def incidents(self) -> Iterator[Case]:
        """The time ranges of the stream that lost time against its best regime."""
        if self._resync_case:
            yield self._resync_case
        if self._time_ranges:
            self._references, self._with_own = self._with_thread_states(self._references)
        for time_range in self._time_ranges:
            yield self._incident(self._excess, time_range)

    def starts_losing_time(self) -> bool:
        """Whether the last seconds lose time that no time range holds yet; not while the agent starts."""
        return self._has_resync_onset or starts_losing_time(
            self._sync_intervals, self._references, self._excess, self._time_ranges, since_ns=self._started_ns
        )

    def is_stalled_now(self) -> bool:
        """Whether the loop stands still for longer than ever, by the length of a stall that is a finding alone."""
        still_ns = self._evidence.window.end_ns - int(self._ends[-1])
        longest_ns = int(self._elapsed_ns.max(initial=0))
        return self._process.exit_ns is None and longest_ns + MIN_SINGLE_STALL_NS < still_ns <= _MAX_STALL_NS

    def bottleneck(self) -> Case | None:
        """The wait of the GPU even in the best regime, over all time outside incidents.

        Where launches were traced for a part of the time only, and nothing is known of the rest, over the longest
        such time: rules sum up what happened in the window of the case, which is then that time.
        """
        is_best = self._recent(at_best(self._sync_intervals, self._references))
        is_losing = Spans([time_range.window for time_range in self._time_ranges]).have_inside(
            self._sync_intervals["sync_end_ns"]
        )
        is_as_ever = self._recent(is_best | ~is_losing)
        found = self._bottleneck(is_best, is_as_ever)
        if (found and not found.is_lower_bound) or not (is_known := self._is_known()).any():
            return found
        is_as_ever = _longest_run(is_as_ever & is_known, self._elapsed_ns)
        is_best = is_best & is_as_ever
        is_enough = is_best.any() and self._elapsed_ns[is_as_ever].sum() >= _MIN_KNOWN_NS
        return (self._bottleneck(is_best, is_as_ever, is_part_known=True) if is_enough else None) or found

    def _is_known(self) -> Array:
        """The intervals of which is known how long the GPU was idle, if launches of others were not traced; else none.

        Not those at the agent's start, nor the first ones of a program: it fills its caches and starts its workers.
        """
        is_untraced = has_untraced_launches(self._sync_intervals)
        has_changed = (self._sync_intervals["flags"] & int(SyncIntervalFlag.COVERAGE_CHANGED)) != 0
        since_ns = max(self._started_ns, int(self._ends[0]) + _WARM_UP_NS)
        is_settled = self._sync_intervals["prev_sync_end_ns"] >= since_ns
        known: Array = ~is_untraced & ~has_changed & is_settled & is_untraced.any()
        return known

    def _whole(self, window: Window) -> Array:
        """The whole sync intervals that ended in a window."""
        sync_intervals = self._evidence.sync_intervals(window, self._process.process)
        if not self._idle.any():
            return sync_intervals
        return without_no_demand(
            sync_intervals,
            self._idle[np.searchsorted(self._ends, sync_intervals["sync_end_ns"]).clip(max=len(self._ends) - 1)],
        )

    def _with_thread_states(
        self, references: Mapping[int, ClassReference]
    ) -> tuple[dict[int, ClassReference], dict[int, ClassReference] | None]:
        """These references with their thread-state times; the same with the host's own time, None where not known."""
        windows = reference_windows(references)
        whole: Array = np.concatenate([self._evidence.no_sync_intervals, *(self._whole(window) for window in windows)])
        own = self._own_time(windows, whole)
        return with_thread_states(references, whole), None if own is None else with_thread_states(references, own)

    def _own_time(self, windows: Sequence[Window], sync_intervals: Array) -> Array | None:
        return with_own_time(self._evidence, self._process.process, windows, sync_intervals)

    def _sample(self, gpu_stream: Array) -> Array:
        """These sync intervals whole, or a sample of very many."""
        return self._read(sample_windows(gpu_stream), gpu_stream)

    def _read(self, windows: Sequence[Window], gpu_stream: Array) -> Array:
        """The whole sync intervals in these windows that are also in `gpu_stream`."""
        whole: Array = np.concatenate([self._evidence.no_sync_intervals, *(self._whole(window) for window in windows)])
        chosen: Array = whole[np.isin(whole["sync_end_ns"], gpu_stream["sync_end_ns"])]
        return chosen

    def _incident(self, excess: Array, time_range: TimeRange) -> Case:
        inside = (self._sync_intervals["sync_end_ns"] > time_range.window.begin_ns) & (
            self._sync_intervals["sync_end_ns"] < time_range.window.end_ns
        )
        members = self._sync_intervals[inside]
        heavy, spread = (self._read(windows, members) for windows in weighted_windows(members, excess[inside]))
        chosen, references = np.concatenate([heavy, spread]), self._references
        own = self._own_time((time_range.window,), chosen) if self._with_own is not None else None
        if own is not None and self._with_own is not None:  # of both or of none: they are compared
            chosen, references = own, self._with_own
        heavy, spread = chosen[: len(heavy)], chosen[len(heavy) :]
        sync_intervals = np.sort(chosen, order="sync_end_ns")
        return Case(
            evidence=self._evidence,
            process=self._process,
            kind=FindingKind.INCIDENT,
            window=time_range.window,
            sync_intervals=sync_intervals,
            sync_interval_count=time_range.sync_intervals,
            references=references,
            excess_ns=excess_ns(sync_intervals, references),
            wall_ns=time_range.wall_ns,
            surrounding_wall_ns=time_range.surrounding_wall_ns,
            lost_ns=time_range.lost_ns,
            peak_ratio=time_range.peak_ratio,
            buckets=_extrapolated(heavy, spread, references, time_range.lost_ns),
            is_agent_start=is_agent_start(
                self._evidence, self._process.session, self._sync_intervals, excess, time_range
            ),
            timeline=timeline(self._sync_intervals, excess, time_range.window),
        )

    def _case_of_resync(self, found: Resync) -> Case | None:
        """The case of a time range that is compared per launch; None where its launches are of other work."""
        members = self._sync_intervals[found.inside]
        now, before = (self._sample(intervals) for intervals in (members, self._sync_intervals[found.baseline]))
        windows = tuple(_window_of(self._sync_intervals[one]) for one in (found.inside, found.baseline))
        if not is_same_work_per_launch(now, before) or not self._has_same_kernels(*windows):
            return None
        wall = int((members["sync_end_ns"] - members["prev_sync_end_ns"]).sum())
        return Case(
            evidence=self._evidence,
            process=self._process,
            kind=FindingKind.INCIDENT,
            window=found.window,
            sync_intervals=now,
            sync_interval_count=len(members),
            references=self._with_thread_states(class_references(self._sync_intervals[found.baseline]))[0],
            excess_ns=(now["sync_end_ns"] - now["prev_sync_end_ns"]) - found.expected_ns(now),
            wall_ns=wall,
            lost_ns=found.lost_ns,
            peak_ratio=found.lost_ns / max(wall, 1),
            buckets=lost_buckets(now, before, int(members["launches"].sum())),
            resync=found,
        )

    def _has_same_kernels(self, *windows: Window) -> bool:
        """Whether the same kernels have about the same shares of the launches in both windows, as far as is known."""
        if not self._evidence.reader.is_recorded("raw_kernel_launches"):
            return True
        process = self._process.process
        counts: list[dict[Hashable, int]] = [
            {
                (one.function, one.name): one.count
                for one in self._evidence.reader.kernel_launches(window, process=process)
            }
            for window in windows
        ]
        return has_same_shares(*counts)

    def _proven(self, members: Array, sync_intervals: Array, scale: float) -> dict[Bucket, int]:
        """Proven lost time of intervals with untraced launches. sync_intervals: the sample of members, for `scale`."""
        members, sync_intervals = (
            members[has_untraced_launches(members)],
            sync_intervals[has_untraced_launches(sync_intervals)],
        )
        if not len(sync_intervals):
            return {}
        window, wall = _window_of(members), int((members["sync_end_ns"] - members["prev_sync_end_ns"]).sum())
        used = self._utilization(sync_intervals, window, wall)
        own_run = own_run_share(self._evidence, self._process.process, (window,), sync_intervals) if used else 0.0
        return proven_idle(
            _scaled(host_wait_buckets(sync_intervals, own_run), scale),
            wall,
            int(members["busy_ns"].sum()),
            idle_at_least_ns(wall, used, self._copied_bytes(window)),
        )

    def _utilization(self, sync_intervals: Array, window: Window, wall_ns: int) -> Utilization | None:
        """NVML's utilization of the GPU of these intervals in a window, without the time of incidents.

        wall_ns: of the intervals, of which it becomes the share: all kernels may have run in them, and none while no
        work was requested.
        """
        incidents = [time_range.window for time_range in self._time_ranges]
        if self._resync_case:
            incidents.append(self._resync_case.window)
        outside = left_out(window, incidents) or (window,)
        used = utilization_of(self._evidence, self._process, int(sync_intervals["device"][0]), outside)
        return used and used.of_shorter(max(length_ns(outside) / max(wall_ns, 1), 1.0))

    def _copied_bytes(self, window: Window) -> float:
        shares = self._evidence.reader.copy_shares((window,), process=self._process.process)
        return sum(share.host_to_gpu_bytes + share.gpu_to_host_bytes for share in shares)

    def _recent(self, chosen: Array) -> Array:
        """The chosen intervals in the window, else all chosen; a live diagnosis also has intervals from long before."""
        recent = chosen & (self._sync_intervals["sync_end_ns"] >= self._evidence.window.begin_ns)
        return recent if recent.any() else chosen

    def _bottleneck(self, is_best: Array, is_as_ever: Array, *, is_part_known: bool = False) -> Case | None:
        """The bottleneck case; None for a small share of time. is_best: the intervals that is_as_ever is judged by."""
        waits = np.sum(list(host_lengths(self._sync_intervals).values()), axis=0)
        for chosen in (is_best, is_as_ever):
            if waits[chosen].sum() < max(BOTTLENECK_RATIO * self._elapsed_ns[chosen].sum(), MIN_LOST_NS):
                return None
        members, sync_intervals = self._sync_intervals[is_as_ever], self._sample(self._sync_intervals[is_best])
        seen, waited = (
            float(sum(lengths.sum() for lengths in host_lengths(sync_intervals).values())),
            float(waits[is_as_ever].sum()),
        )
        scale = waited / seen if len(sync_intervals) < len(members) and seen else 1.0
        sums = Counter(self._proven(members, sync_intervals, scale))
        sums.update(_scaled(host_wait_buckets(sync_intervals[~has_untraced_launches(sync_intervals)]), scale))
        window = _window_of(members)
        wall = int(self._elapsed_ns[is_as_ever].sum())
        used = self._utilization(sync_intervals, window, wall)
        hidden = frozenset(Part) if is_step(sync_intervals).any() else frozenset({Part.LAUNCH})
        against_zero = capped_by_nvml(sums, wall, used, hidden)
        waited_ns, proven_ns = sum(against_zero.values()), 0
        if run_ns := int(run_while_idle_ns(sync_intervals) * scale):
            idle_ns = idle_at_least_ns(wall, used, self._copied_bytes(window))
            proven_ns = int(min(max(idle_ns - (wall - run_ns), 0.0), run_ns))  # longer than all time it did not run
            against_zero |= {_RUN_OF_STEP: proven_ns} if proven_ns else {}
        lost = waited_ns + proven_ns
        if lost < max(BOTTLENECK_RATIO * wall, MIN_LOST_NS):
            return None
        return Case(
            evidence=self._evidence,
            process=self._process,
            kind=FindingKind.BOTTLENECK,
            window=window,
            sync_intervals=sync_intervals,
            sync_interval_count=len(members),
            references=self._references,
            excess_ns=(sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]).astype(np.float64),
            wall_ns=wall,
            lost_ns=lost,
            peak_ratio=lost / max(wall, 1),
            buckets=against_zero,
            is_lower_bound=proven_ns > 0 or float(has_untraced_launches(sync_intervals).mean()) > _MAJORITY,
            is_part_known=is_part_known,
        )


def _longest_run(chosen: Array, elapsed_ns: Array) -> Array:
    """The chosen sync intervals that follow each other for the longest time."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], chosen, [False])).astype(np.int8)))
    found = np.zeros(len(chosen), bool)
    runs = [slice(begin, end) for begin, end in edges.reshape(-1, 2).tolist()]
    if runs:
        found[max(runs, key=lambda run: int(elapsed_ns[run].sum()))] = True
    return found


def _window_of(sync_intervals: Array) -> Window:
    """From the start of the first sync interval to the end of the last one."""
    return Window(
        begin_ns=int(sync_intervals["prev_sync_end_ns"][0]), end_ns=int(sync_intervals["sync_end_ns"][-1]) + 1
    )


def _scaled(lost: Mapping[Bucket, int], scale: float) -> dict[Bucket, int]:
    return {bucket: int(ns * scale) for bucket, ns in lost.items()}


def _extrapolated(
    heavy: Array, spread: Array, references: Mapping[int, ClassReference], lost_ns: int
) -> dict[Bucket, int]:
    """Lost time by bucket: of the heavy sync intervals as measured, of the spread sample scaled to all the rest."""
    lost = buckets(heavy, references)
    if not len(spread):
        return lost
    rest, seen = lost_ns - float(excess_ns(heavy, references).sum()), float(excess_ns(spread, references).sum())
    scale = rest / seen if rest > 0 and seen > 0 else 1.0
    for bucket, ns in buckets(spread, references).items():
        lost[bucket] = lost.get(bucket, 0) + round(ns * scale)
    return lost
