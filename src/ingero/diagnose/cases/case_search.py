"""Where the rules are to look: the time ranges of every process that lost time, and what keeps its device waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.nvml_utilization import Utilization, utilization_of
from ingero.diagnose.findings import Bucket, FindingKind, Part
from ingero.diagnose.lost_time.agent_start import is_recorders_start, settled_at_ns
from ingero.diagnose.lost_time.best_regime import Usual, at_best, usual_sync_intervals, with_clocks
from ingero.diagnose.lost_time.buckets import buckets
from ingero.diagnose.lost_time.interval_sampling import sample_windows, weighted_windows
from ingero.diagnose.lost_time.no_demand import idle_ns, shortened
from ingero.diagnose.lost_time.resync import Resynced, is_same_work, lost_buckets, resynced
from ingero.diagnose.lost_time.time_ranges import (
    MIN_LOST_NS,
    ONE_LOST_NS,
    TimeRange,
    begins_to_lose,
    excess_ns,
    losing_ranges,
)
from ingero.diagnose.lost_time.timeline import timeline
from ingero.diagnose.steps.pacing import HOST_BOUND, is_step, is_untimed
from ingero.diagnose.steps.queue_depth import was_full
from ingero.diagnose.steps.untraced_launches import is_host_paced, is_unseen
from ingero.events import STATES
from ingero.store.arrays.spans import Spans, left_out
from ingero.store.records import Process, Window

Array = np.ndarray[Any, np.dtype[Any]]

BOTTLENECK_RATIO = 0.10  # of wall time against zero, before a share of it is called a bottleneck
WORK_RATIO = 0.25  # of all time computing and launching, before that is called a bottleneck
_DEVICE_WAITED = (
    0.05  # of the time that the GPU was busy; below, the GPU was done as soon as the host had enqueued the last
)
_BRIEF_NS = 5_000_000_000  # from the first sync interval to the last of a process that is gone
_HELD_UP_NS = 3_000_000_000  # a loop that has stood still for longer may be over, or idle: that needs no hurry
_SLOWEST_LINK = 3.0  # bytes a ns: PCIe 3.0 with four streams, the least that GPUs which train are found on
_CLOCKS_OF = {Part.IDLE: "idle", Part.LAUNCH: "launch", Part.RETURN_DELAY: "sync"}


def find_cases(evidence: Evidence) -> list[Case]:
    """The time ranges of every process that lost time against its best regime, then the bottlenecks of that regime."""
    search = CaseSearch(evidence)
    return [*search.incidents(), *search.bottlenecks()]


class CaseSearch:
    """The same by kind: whoever looks again and again need not ask what is slow at best each time.

    While recording, not those of processes that were gone at once: by the hundred they would be all that is looked at.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._gpu_streams: list[_GpuStream] = []
        for number, gpu_stream in evidence.gpu_streams.items():
            process = evidence.processes.get(number)
            if process is not None and len(gpu_stream) and not (evidence.is_live and _was_brief(process, gpu_stream)):
                self._gpu_streams.append(_GpuStream(evidence, process, gpu_stream))

    def incidents(self) -> list[Case]:
        """What lost time against its best regime."""
        return [case for gpu_stream in self._gpu_streams for case in gpu_stream.incidents()]

    def sees_a_beginning(self) -> bool:
        """Whether something begins to lose time or stands still, and has not lost enough to be a case."""
        return any(gpu_stream.begins_to_lose() or gpu_stream.is_held_up() for gpu_stream in self._gpu_streams)

    def bottlenecks(self) -> list[Case]:
        """What keeps a device waiting in that regime, too."""
        return [case for gpu_stream in self._gpu_streams if (case := gpu_stream.bottleneck())]


def _was_brief(process: Process, gpu_stream: Array) -> bool:
    return (
        process.exit_ns is not None
        and int(gpu_stream["sync_end_ns"][-1] - gpu_stream["prev_sync_end_ns"][0]) < _BRIEF_NS
    )


class _GpuStream:
    """The main stream of one process, without its time without demand."""

    def __init__(self, evidence: Evidence, process: Process, gpu_stream: Array) -> None:
        self._evidence, self._process = evidence, process
        self._ends = np.ascontiguousarray(gpu_stream["sync_end_ns"])
        self._idle = idle_ns(evidence, process, gpu_stream)
        self._sync_intervals, self._elapsed_ns = (
            shortened(gpu_stream, self._idle),
            gpu_stream["sync_end_ns"] - gpu_stream["prev_sync_end_ns"],
        )
        self._started_ns = settled_at_ns(evidence, process.session)
        found = resynced(self._sync_intervals)
        self._resynced_case = self._resynced(found) if found and found.is_enough else None
        self._resyncs = found is not None and found.is_beginning(int(self._ends[-1]), since_ns=self._started_ns)
        if found and self._resynced_case:
            self._sync_intervals, self._elapsed_ns = (
                self._sync_intervals[~found.inside],
                self._elapsed_ns[~found.inside],
            )
        self._usual = usual_sync_intervals(self._sync_intervals)
        self._excess = excess_ns(self._sync_intervals, self._usual)
        self._time_ranges = losing_ranges(self._sync_intervals, self._usual, self._excess, apart_ns=self._started_ns)

    def incidents(self) -> Iterator[Case]:
        """The time ranges that lost time."""
        if self._resynced_case:
            yield self._resynced_case
        if self._time_ranges:
            self._usual = with_clocks(self._usual, self._whole)
        for time_range in self._time_ranges:
            yield self._incident(self._usual, self._excess, time_range)

    def begins_to_lose(self) -> bool:
        """Whether the last seconds lose time, and no time range holds them yet; not while the recorder starts."""
        return self._resyncs or begins_to_lose(
            self._sync_intervals, self._usual, self._excess, self._time_ranges, since_ns=self._started_ns
        )

    def is_held_up(self) -> bool:
        """Whether it stands still for longer than it ever did, by as much as is worth a finding by itself."""
        still_ns = self._evidence.window.end_ns - int(self._ends[-1])
        longest_ns = int(self._elapsed_ns.max(initial=0))
        return self._process.exit_ns is None and longest_ns + ONE_LOST_NS < still_ns <= _HELD_UP_NS

    def bottleneck(self) -> Case | None:
        """Where the GPU is kept waiting even at best, and for as long as that went on: outside of incidents."""
        is_best = self._recent(at_best(self._sync_intervals, self._usual))
        is_losing = Spans([one.window for one in self._time_ranges]).have_inside(self._sync_intervals["sync_end_ns"])
        return self._bottleneck(is_best, self._recent(is_best | ~is_losing))

    def _whole(self, window: Window) -> Array:
        """The whole sync intervals that ended in a window."""
        sync_intervals = self._evidence.sync_intervals(window, self._process.process)
        if not self._idle.any():
            return sync_intervals
        return shortened(
            sync_intervals,
            self._idle[np.searchsorted(self._ends, sync_intervals["sync_end_ns"]).clip(max=len(self._ends) - 1)],
        )

    def _sample(self, gpu_stream: Array) -> Array:
        """These sync intervals whole, or of very many some."""
        return self._read(sample_windows(gpu_stream), gpu_stream)

    def _read(self, windows: Sequence[Window], gpu_stream: Array) -> Array:
        """The whole sync intervals of a stream in these windows."""
        whole: Array = np.concatenate([self._evidence.no_sync_intervals, *(self._whole(window) for window in windows)])
        chosen: Array = whole[np.isin(whole["sync_end_ns"], gpu_stream["sync_end_ns"])]
        return chosen

    def _incident(self, usual: Mapping[int, Usual], excess: Array, time_range: TimeRange) -> Case:
        inside = (self._sync_intervals["sync_end_ns"] > time_range.window.begin_ns) & (
            self._sync_intervals["sync_end_ns"] < time_range.window.end_ns
        )
        members = self._sync_intervals[inside]
        heavy, spread = (self._read(windows, members) for windows in weighted_windows(members, excess[inside]))
        sync_intervals = np.sort(np.concatenate([heavy, spread]), order="sync_end_ns")
        return Case(
            evidence=self._evidence,
            process=self._process,
            kind=FindingKind.INCIDENT,
            window=time_range.window,
            sync_intervals=sync_intervals,
            sync_interval_count=time_range.sync_intervals,
            usual=usual,
            excess_ns=excess_ns(sync_intervals, usual),
            wall_ns=time_range.wall_ns,
            around_ns=time_range.around_ns,
            lost_ns=time_range.lost_ns,
            peak_ratio=time_range.peak_ratio,
            buckets=_extrapolated(heavy, spread, usual, time_range.lost_ns),
            is_recorders_start=is_recorders_start(
                self._evidence, self._process.session, self._sync_intervals, excess, time_range
            ),
            timeline=timeline(self._sync_intervals, excess, time_range.window),
        )

    def _resynced(self, found: Resynced) -> Case | None:
        """Compared per launch; None where the launches are not of the same work."""
        members = self._sync_intervals[found.inside]
        now, before = (self._sample(one) for one in (members, self._sync_intervals[found.usual]))
        if not is_same_work(now, before):
            return None
        wall = int((members["sync_end_ns"] - members["prev_sync_end_ns"]).sum())
        return Case(
            evidence=self._evidence,
            process=self._process,
            kind=FindingKind.INCIDENT,
            window=found.window,
            sync_intervals=now,
            sync_interval_count=len(members),
            usual=with_clocks(usual_sync_intervals(self._sync_intervals[found.usual]), self._whole),
            excess_ns=(now["sync_end_ns"] - now["prev_sync_end_ns"]) - found.wanted_ns(now),
            wall_ns=wall,
            lost_ns=found.lost_ns,
            peak_ratio=found.lost_ns / max(wall, 1),
            buckets=lost_buckets(now, before, int(members["launches"].sum())),
            resynced=found,
        )

    def _proven(self, members: Array, sync_intervals: Array, scale: float) -> dict[Bucket, int]:
        """Of intervals whose launches were not traced, as far as proven; sync_intervals: of members, to be scaled."""
        members, sync_intervals = members[is_unseen(members)], sync_intervals[is_unseen(sync_intervals)]
        if not len(sync_intervals):
            return {}
        window, wall = _window_of(members), int((members["sync_end_ns"] - members["prev_sync_end_ns"]).sum())
        used = self._utilization(sync_intervals, window)
        return proven_idle(_scaled(host_share(sync_intervals), scale), wall, used, self._copied_bytes(window))

    def _utilization(self, sync_intervals: Array, window: Window) -> Utilization | None:
        """Of the GPU of these intervals, in the time of a window that no incident is about."""
        told = [one.window for one in self._time_ranges]
        if self._resynced_case:
            told.append(self._resynced_case.window)
        calm = left_out(window, told) or (window,)
        return utilization_of(self._evidence, self._process, int(sync_intervals["device"][0]), calm)

    def _copied_bytes(self, window: Window) -> float:
        shares = self._evidence.reader.copy_shares((window,), process=self._process.process)
        return sum(one.host_to_gpu_bytes + one.gpu_to_host_bytes for one in shares)

    def _recent(self, chosen: Array) -> Array:
        """Those in the window, if there are any: while recording, a reference from long before is at hand, too."""
        recent = chosen & (self._sync_intervals["sync_end_ns"] >= self._evidence.window.begin_ns)
        return recent if recent.any() else chosen

    def _bottleneck(self, is_best: Array, is_as_ever: Array) -> Case | None:
        """Nothing where it is little of the time, idle or not. is_best: what the rest of is_as_ever is judged by."""
        waits = np.sum(list(_host_lengths(self._sync_intervals).values()), axis=0)
        for chosen in (is_best, is_as_ever):
            if waits[chosen].sum() < max(BOTTLENECK_RATIO * self._elapsed_ns[chosen].sum(), MIN_LOST_NS):
                return None
        members, sync_intervals = self._sync_intervals[is_as_ever], self._sample(self._sync_intervals[is_best])
        seen, waited = (
            float(sum(one.sum() for one in _host_lengths(sync_intervals).values())),
            float(waits[is_as_ever].sum()),
        )
        scale = waited / seen if len(sync_intervals) < len(members) and seen else 1.0
        sums = Counter(self._proven(members, sync_intervals, scale))
        sums.update(_scaled(host_share(sync_intervals[~is_unseen(sync_intervals)]), scale))
        window = _window_of(members)
        wall = int(self._elapsed_ns[is_as_ever].sum())
        used = self._utilization(sync_intervals, window)
        hidden = frozenset(Part) if is_step(sync_intervals).any() else frozenset({Part.LAUNCH})
        against_zero = at_most_idle(sums, wall, used, hidden)
        lost = sum(against_zero.values())
        if lost < max(BOTTLENECK_RATIO * wall, MIN_LOST_NS):
            return None
        return Case(
            evidence=self._evidence,
            process=self._process,
            kind=FindingKind.BOTTLENECK,
            window=window,
            sync_intervals=sync_intervals,
            sync_interval_count=len(members),
            usual=self._usual,
            excess_ns=(sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"]).astype(np.float64),
            wall_ns=wall,
            lost_ns=lost,
            peak_ratio=lost / max(wall, 1),
            buckets=against_zero,
        )


def _window_of(sync_intervals: Array) -> Window:
    """From the begin of the first to the end of the last."""
    return Window(
        begin_ns=int(sync_intervals["prev_sync_end_ns"][0]), end_ns=int(sync_intervals["sync_end_ns"][-1]) + 1
    )


def _scaled(lost: Mapping[Bucket, int], scale: float) -> dict[Bucket, int]:
    return {bucket: int(ns * scale) for bucket, ns in lost.items()}


def _extrapolated(heavy: Array, spread: Array, usual: Mapping[int, Usual], lost_ns: int) -> dict[Bucket, int]:
    """Lost time by bucket: of the heavy sync intervals as it is, of the spread ones for all the rest of it."""
    lost = buckets(heavy, usual)
    if not len(spread):
        return lost
    rest, seen = lost_ns - float(excess_ns(heavy, usual).sum()), float(excess_ns(spread, usual).sum())
    scale = rest / seen if rest > 0 and seen > 0 else 1.0
    for bucket, ns in buckets(spread, usual).items():
        lost[bucket] = lost.get(bucket, 0) + round(ns * scale)
    return lost


def _host_lengths(sync_intervals: Array) -> dict[Part, Array]:
    """GPU idle, return delay, and the launch phase where the GPU was done as soon as the host; of either kind."""
    steps = is_step(sync_intervals)
    if steps.any():  # what the host does anyway is no wait of the GPU, and where the GPU paces too nothing is proven
        is_host_bound = (
            sync_intervals["busy_ns"]
            <= HOST_BOUND * (sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"])
        ) & ~is_untimed(sync_intervals)
        none = np.zeros(len(sync_intervals), np.int64)
        return {
            Part.IDLE: np.where(is_host_bound, sync_intervals["idle_ns"], 0),
            Part.LAUNCH: none,
            Part.RETURN_DELAY: none,
        }
    kept_waiting = (
        sync_intervals["gpu_done_ns"] - sync_intervals["sync_start_ns"] < _DEVICE_WAITED * sync_intervals["busy_ns"]
    ) & ~was_full(sync_intervals)
    return {
        Part.IDLE: np.where(is_unseen(sync_intervals) & ~is_host_paced(sync_intervals), 0, sync_intervals["idle_ns"]),
        Part.LAUNCH: np.where(kept_waiting, sync_intervals["sync_start_ns"] - sync_intervals["first_launch_ns"], 0),
        Part.RETURN_DELAY: sync_intervals["return_delay_ns"],
    }


def at_most_idle(
    lost: dict[Bucket, int],
    wall_ns: int,
    used: Utilization | None,
    hidden: frozenset[Part] = frozenset({Part.LAUNCH}),
) -> dict[Bucket, int]:
    """The same, with no more of the hidden parts than leaves the GPU the time in which NVML has seen a kernel run.

    hidden: in which it is not known whether the GPU worked: between the launches of a host that is too slow it did
    nothing, or most of the work; in a step by repetition it may have worked all the while. Charged is what NVML's mean
    leaves, not what its error might leave besides. Where several processes use it, the host is charged only with what
    it was idle for all of them.
    """
    hidden_ns = sum(ns for bucket, ns in lost.items() if bucket.part in hidden)
    if used is None or not hidden_ns:
        return lost
    idle_ns = wall_ns * (1 - used.share) - (sum(lost.values()) - hidden_ns)
    scale = min(max(idle_ns / hidden_ns, 0.0), 1.0)
    return {bucket: int(ns * scale) if bucket.part in hidden else ns for bucket, ns in lost.items()}


def proven_idle(
    lost: dict[Bucket, int], wall_ns: int, used: Utilization | None, copied_bytes: float
) -> dict[Bucket, int]:
    """The same where launches were not traced: what of the host's waits, if any, the GPU was idle in for certain.

    Where in a sync interval the launches lie is not known then, so that its host may have waited behind the GPU's work.
    Waits and the time without a kernel that together are longer than all of it overlap by the difference. A GPU that
    copies runs none: copied_bytes between it and the host take what they would on the slowest link.
    """
    waits_ns = sum(ns for bucket, ns in lost.items() if bucket.part is not Part.RETURN_DELAY)
    idle_ns = wall_ns * (1 - used.share - used.error) - copied_bytes / _SLOWEST_LINK if used else 0.0
    scale = max(waits_ns + max(idle_ns, 0.0) - wall_ns, 0.0) / max(waits_ns, 1)
    return {bucket: ns if bucket.part is Part.RETURN_DELAY else int(ns * scale) for bucket, ns in lost.items()}


def _launching_ns(sync_intervals: Array, lengths: Array) -> int:
    """Computing where launches were not traced: it may be launching, and the GPU busy meanwhile."""
    mine = is_unseen(sync_intervals) & (lengths > 0)
    return int(np.maximum(sync_intervals["idle_state_ns"][mine, STATES.index("run")], 0).sum())


def host_share(sync_intervals: Array) -> dict[Bucket, int]:
    """The breakdown of GPU idle, return delay, and the launch phase where the GPU was done as soon as the host."""
    found: dict[Bucket, int] = {}
    for part, lengths in _host_lengths(sync_intervals).items():
        clocks = sync_intervals[f"{_CLOCKS_OF[part]}_state_ns"]
        counted = (clocks[:, 0] >= 0) & (lengths > 0 if part is not Part.RETURN_DELAY else True)
        sums = clocks[counted].sum(axis=0).astype(np.float64)
        if part is Part.RETURN_DELAY:
            sums[[STATES.index("run"), STATES.index("sleep")]] = 0  # of the whole sync: that is device wait
        total = float(lengths.sum())
        if is_step(sync_intervals).any():
            sums[STATES.index("run")] = 0
            total = min(total, float(sums.sum()))
        scale = min(1.0, total / sums.sum()) if sums.sum() else 0.0
        shares = {Bucket(part, clock): int(ns) for clock, ns in zip(STATES, sums * scale, strict=True)}
        found |= shares | {Bucket(part, "unknown"): int(total - sum(shares.values()))}
        if part is Part.IDLE:
            found[Bucket(part, "run")] -= int(_launching_ns(sync_intervals, lengths) * scale)
    return {bucket: ns for bucket, ns in found.items() if ns > 0}
