"""Memory that ran short on the critical path: who reclaimed when, below which limit, and what had to be read again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.storage.block_requests import DiskWaits
from ingero.diagnose.evidence.host_event_index import Timeline, overlap_ns
from ingero.diagnose.findings import Bucket, Part
from ingero.diagnose.offcpu.critical_path import Segment
from ingero.ops import HostOp, Source
from ingero.store.host_events import HostEvent
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

RECLAIM = (HostOp.DIRECT_RECLAIM, HostOp.COMPACTION)
_IN_RECLAIM = ("run", "uninterruptible", "io")  # what a thread that reclaims does
_RETRY_NS = 20_000  # an allocation below a limit tries again within 9 to 20 us, as long as one launch takes from Python
_MORE = 5.0  # times as much as in the reference, before reading or reclaiming is called new
_PARTS = (
    (Part.IDLE, "prev_sync_tid", "prev_sync_end_ns", "first_launch_ns"),
    (Part.LAUNCH, "first_launch_tid", "first_launch_ns", "sync_start_ns"),
    (Part.RETURN_DELAY, "sync_tid", "sync_start_ns", "sync_end_ns"),
)


class Pressure:
    """Reclaim, compaction and faults of the process and its workers in one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.disk = DiskWaits(case)

    @cached_property
    def reclaims(self) -> list[HostEvent]:
        """Reclaim and compaction of the process and its workers in the case."""
        window = self.case.window
        return [one for one in self._reclaims_in(window) if overlap_ns(one, window.begin_ns, window.end_ns) > 0]

    def _reclaims_in(self, window: Window) -> list[HostEvent]:
        events = self.case.evidence.host_events(window, Source.HOST)
        return [one for one in events if one.op in RECLAIM and one.pid in self.case.family]

    @cached_property
    def _of_thread(self) -> Timeline:
        return Timeline(self.reclaims, lambda one: one.tid)

    def reclaimed_on_path(self) -> dict[Bucket, int]:
        """Time on the critical path inside reclaim or compaction, its own and that of the worker it waited for."""
        found = self.disk.paths.claim_parts(self._inside_ns)
        wanted = {part: self._own_ns(tid, begin, end) for part, tid, begin, end in _PARTS}
        for part, ns in wanted.items():
            already = sum(taken for bucket, taken in found.items() if bucket.part is part and bucket.state != "sleep")
            places = [Bucket(part, state) for state in _IN_RECLAIM]
            room = {one: max(self.case.left.get(one, 0) - found.get(one, 0), 0) for one in places}
            share = min(max(ns - already, 0) / max(sum(room.values()), 1), 1.0)
            for bucket, free_ns in room.items():
                found[bucket] = found.get(bucket, 0) + int(share * free_ns)
        return {bucket: ns for bucket, ns in found.items() if ns > 0}

    def _inside_ns(self, one: Segment) -> float:
        if one.pid not in self.case.family or one.state == "runq":
            return 0.0
        return float(self._of_thread.taken_ns(one.tid, one.begin_ns, one.end_ns))

    def _own_ns(self, tid: str, begin: str, end: str) -> float:
        """Reclaim of the critical-path thread in one part of all sync intervals of the case, beyond the reference's."""
        case, usual_ns, count = self.case, 0, 0
        for window in case.baselines:
            sync_intervals = case.evidence.sync_intervals(window, case.process.process)
            usual_ns += _within(self._reclaims_in(window), sync_intervals, tid, begin, end)
            count += len(sync_intervals)
        now_ns = _within(self.reclaims, case.sync_intervals, tid, begin, end)
        return max(now_ns - len(case.sync_intervals) * usual_ns / max(count, 1), 0.0) * case.scale

    def is_fault(self, segment: Segment) -> bool:
        """Whether it waited for a page that it touched to be read from disk."""
        return self.disk.is_disk(segment) and any(one.is_page_fault for one in self.disk.requests_of(segment))

    def read_again(self, segment: Segment) -> bool:
        """Whether it read what had been in memory before: a touched page, or a file that needed no disk until then."""
        if not self.disk.is_disk(segment):
            return False
        requests = self.disk.requests_of(segment)
        return any(one.is_page_fault for one in requests) or (self.reads_are_new and bool(requests))

    @cached_property
    def reads_are_new(self) -> bool:
        """Whether the process and its workers read much more from disk than in the reference."""
        now = sum(one.size_bytes or 0 for one in self.disk.own)
        return self._is_more(now, sum(one.size_bytes or 0 for one in self.disk.usual_own()))

    @cached_property
    def is_new(self) -> bool:
        """Whether reclaim took much more time than in the reference."""
        usual = sum(one.duration_ns or 0 for window in self.case.baselines for one in self._reclaims_in(window))
        return self._is_more(sum(one.duration_ns or 0 for one in self.reclaims), usual)

    def _is_more(self, now: int, usual: int) -> bool:
        usual_span = sum(one.duration_ns for one in self.case.baselines)
        return usual_span > 0 and now / max(self.case.window.duration_ns, 1) > _MORE * usual / usual_span

    @property
    def limit(self) -> str:
        """Whose memory was short: "host" or "cgroup", where it is known."""
        limits = Counter(one.limit for one in self.reclaims if one.limit)
        return limits.most_common(1)[0][0] if limits else ""

    def faults(self) -> int:
        """Reads of touched pages by the process and its workers in the case."""
        return sum(one.is_page_fault and one.start_ns >= self.case.window.begin_ns for one in self.disk.own)


def _within(events: Sequence[HostEvent], sync_intervals: Any, tid: str, begin: str, end: str) -> int:
    """How much of the events lies in this part of sync intervals whose thread they happened to; sync intervals are in
    order of time.

    The moment after which a thread tries again is theirs, too.
    """
    begins = np.array([one.start_ns for one in events], np.int64)
    tids = np.array([one.tid for one in events], np.int64)
    ends = _until_retried(begins, begins + np.array([one.duration_ns or 0 for one in events], np.int64), tids)
    place = np.searchsorted(sync_intervals["sync_end_ns"], begins)
    taken = 0
    while len(place):
        reaches = place < len(sync_intervals)
        reaches[reaches] = sync_intervals["prev_sync_end_ns"][place[reaches]] < ends[reaches]
        begins, ends, tids, place = begins[reaches], ends[reaches], tids[reaches], place[reaches]
        mine = sync_intervals[place]
        shared = np.minimum(ends, mine[end]) - np.maximum(begins, mine[begin])
        taken += int(np.maximum(shared, 0)[mine[tid] == tids].sum())
        place = place + 1
    return taken


def _until_retried(begins: Array, ends: Array, tids: Array) -> Array:
    """These ends; the thread's next begin where that follows at once."""
    order = np.lexsort((begins, tids))
    last, following = order[:-1], order[1:]
    gaps = begins[following] - ends[last]
    is_retried = (tids[following] == tids[last]) & (gaps > 0) & (gaps <= _RETRY_NS)
    found: Array = ends.copy()
    found[last[is_retried]] = begins[following[is_retried]]
    return found
