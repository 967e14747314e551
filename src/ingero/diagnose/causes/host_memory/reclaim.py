"""Direct reclaim and compaction on the critical path: of which limit, for how long, and what had to be reread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.storage.block_requests import DiskWaits
from ingero.diagnose.evidence.host_event_index import HostEventIndex, overlap_ns
from ingero.diagnose.findings import Bucket, Part
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.ops import HostOp, Source
from ingero.store.host_events import HostEvent
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

RECLAIM = (HostOp.DIRECT_RECLAIM, HostOp.COMPACTION)
_RECLAIM_STATES = ("run", "uninterruptible", "io")  # states of a thread that reclaims
# An allocation below a limit is retried within 9 to 20 us, about as long as one launch takes from Python.
_MAX_RETRY_NS = 20_000
_MIN_TIMES_BASELINE = 5.0  # times as much as in the baseline, before reads or reclaims count as new
_PART_COLUMNS = (
    (Part.IDLE, "prev_sync_tid", "prev_sync_end_ns", "first_launch_ns"),
    (Part.LAUNCH, "first_launch_tid", "first_launch_ns", "sync_start_ns"),
    (Part.RETURN_DELAY, "sync_tid", "sync_start_ns", "sync_end_ns"),
)


class MemoryPressure:
    """Reclaim, compaction and major page faults of the process and its workers in one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.disk = DiskWaits(case)

    @cached_property
    def reclaims(self) -> list[HostEvent]:
        """Reclaims and compactions of the process and its workers in the case."""
        window = self.case.window
        return [event for event in self._reclaims_in(window) if overlap_ns(event, window.begin_ns, window.end_ns) > 0]

    def _reclaims_in(self, window: Window) -> list[HostEvent]:
        events = self.case.evidence.host_events(window, Source.HOST)
        return [event for event in events if event.op in RECLAIM and event.pid in self.case.family]

    @cached_property
    def _by_thread(self) -> HostEventIndex:
        return HostEventIndex(self.reclaims, lambda event: event.tid)

    def reclaimed_on_path(self) -> dict[Bucket, int]:
        """Time on the critical path inside reclaim or compaction, of the process and of the worker it waited for."""
        claims = self.disk.paths.claim_parts(self._reclaim_in_segment_ns)
        own_ns_by_part = {part: self._own_reclaim_ns(tid, begin, end) for part, tid, begin, end in _PART_COLUMNS}
        for part, ns in own_ns_by_part.items():
            claimed = sum(taken for bucket, taken in claims.items() if bucket.part is part and bucket.state != "sleep")
            buckets = [Bucket(part, state) for state in _RECLAIM_STATES]
            room = {bucket: max(self.case.unclaimed.get(bucket, 0) - claims.get(bucket, 0), 0) for bucket in buckets}
            share = min(max(ns - claimed, 0) / max(sum(room.values()), 1), 1.0)
            for bucket, free_ns in room.items():
                claims[bucket] = claims.get(bucket, 0) + int(share * free_ns)
        return {bucket: ns for bucket, ns in claims.items() if ns > 0}

    def _reclaim_in_segment_ns(self, segment: PathSegment) -> float:
        if segment.pid not in self.case.family or segment.state == "runq":
            return 0.0
        return float(self._by_thread.covered_ns(segment.tid, segment.begin_ns, segment.end_ns))

    def _own_reclaim_ns(self, tid: str, begin: str, end: str) -> float:
        """Reclaim of the critical-path thread in one part of all sync intervals of the case, beyond the baseline."""
        case, baseline_reclaim_ns, count = self.case, 0, 0
        for window in case.baseline_windows:
            sync_intervals = case.evidence.sync_intervals(window, case.process.process)
            baseline_reclaim_ns += _reclaim_in_part_ns(self._reclaims_in(window), sync_intervals, tid, begin, end)
            count += len(sync_intervals)
        now_ns = _reclaim_in_part_ns(self.reclaims, case.sync_intervals, tid, begin, end)
        return max(now_ns - len(case.sync_intervals) * baseline_reclaim_ns / max(count, 1), 0.0) * case.scale

    def is_fault(self, segment: PathSegment) -> bool:
        """Whether a segment waited for a touched page to be read from disk."""
        return self.disk.is_disk(segment) and any(event.is_page_fault for event in self.disk.requests_of(segment))

    def is_reread(self, segment: PathSegment) -> bool:
        """Whether a segment read what had been in memory: a touched page, or a file not read before."""
        if not self.disk.is_disk(segment):
            return False
        requests = self.disk.requests_of(segment)
        return any(event.is_page_fault for event in requests) or (self.has_new_reads and bool(requests))

    @cached_property
    def has_new_reads(self) -> bool:
        """Whether the process and its workers read much more from disk than in the baseline."""
        now = sum(event.size_bytes or 0 for event in self.disk.own)
        return self._is_much_more(now, sum(event.size_bytes or 0 for event in self.disk.own_in_baseline()))

    @cached_property
    def is_reclaim_new(self) -> bool:
        """Whether reclaim took much more time than in the baseline."""
        baseline = sum(
            event.duration_ns or 0 for window in self.case.baseline_windows for event in self._reclaims_in(window)
        )
        return self._is_much_more(sum(event.duration_ns or 0 for event in self.reclaims), baseline)

    def _is_much_more(self, now: int, baseline: int) -> bool:
        baseline_ns = sum(window.duration_ns for window in self.case.baseline_windows)
        return (
            baseline_ns > 0
            and now / max(self.case.window.duration_ns, 1) > _MIN_TIMES_BASELINE * baseline / baseline_ns
        )

    @property
    def limit(self) -> str:
        """Which memory was short: "host" or "cgroup"; "" if unknown."""
        limits = Counter(event.limit for event in self.reclaims if event.limit)
        return limits.most_common(1)[0][0] if limits else ""

    def faults(self) -> int:
        """Major page faults of the process and its workers in the case."""
        return sum(event.is_page_fault and event.start_ns >= self.case.window.begin_ns for event in self.disk.own)


def _reclaim_in_part_ns(events: Sequence[HostEvent], sync_intervals: Any, tid: str, begin: str, end: str) -> int:
    """How much of these events lies in one part of the sync intervals, on the thread of that part.

    Sync intervals are ascending in time. The moment between two tries of an allocation counts, too.
    """
    begins = np.array([event.start_ns for event in events], np.int64)
    tids = np.array([event.tid for event in events], np.int64)
    ends = _ends_with_retries(begins, begins + np.array([event.duration_ns or 0 for event in events], np.int64), tids)
    place = np.searchsorted(sync_intervals["sync_end_ns"], begins)
    total_ns = 0
    while len(place):
        reaches = place < len(sync_intervals)
        reaches[reaches] = sync_intervals["prev_sync_end_ns"][place[reaches]] < ends[reaches]
        begins, ends, tids, place = begins[reaches], ends[reaches], tids[reaches], place[reaches]
        intervals = sync_intervals[place]
        shared = np.minimum(ends, intervals[end]) - np.maximum(begins, intervals[begin])
        total_ns += int(np.maximum(shared, 0)[intervals[tid] == tids].sum())
        place = place + 1
    return total_ns


def _ends_with_retries(begins: Array, ends: Array, tids: Array) -> Array:
    """Ends of the events; where the same thread tries again at once, the start of that try."""
    order = np.lexsort((begins, tids))
    last, following = order[:-1], order[1:]
    gaps = begins[following] - ends[last]
    is_retried = (tids[following] == tids[last]) & (gaps > 0) & (gaps <= _MAX_RETRY_NS)
    until: Array = ends.copy()
    until[last[is_retried]] = begins[following[is_retried]]
    return until
