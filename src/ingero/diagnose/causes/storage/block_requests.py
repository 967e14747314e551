"""Block requests behind the waits of a critical path: their issuer, what they moved, and the device's other load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.case_paths import BLOCKED
from ingero.diagnose.cases.kernel_waits import PathWaits
from ingero.diagnose.evidence.host_event_index import HostEventIndex, begin_ns, overlap_ns
from ingero.diagnose.findings import Bucket, CodeLine, Culprit, Fact, Part
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.samples.stack_samples import line_of_kernel_waits
from ingero.ops import IoOp, Source
from ingero.store.host_events import HostEvent
from ingero.units import format_bytes, format_count, format_ns

_MINOR_BITS = 20  # of a dev_t, include/linux/kdev_t.h
_MOVING_OPS = (IoOp.READ, IoOp.WRITE)
_DISK_THREADS = ("jbd2/", "xfsaild/", "btrfs-", "kworker", "dm-", "loop", "txg_sync")
_MIN_OTHERS_BYTES = 1 << 20  # of another process, before it is named
_MIN_SAMPLED_REQUESTS = 5  # requests that stand for others, before a process is named: one may be its only one
_MAX_TIMES_BASELINE_BYTES = 1.1  # times the bytes per step


@dataclass(frozen=True, slots=True)
class Requests:
    """A set of block requests, summed up."""

    events: Sequence[HostEvent]

    @property
    def size_bytes(self) -> int:
        """Bytes moved."""
        return sum(event.size_bytes or 0 for event in self.events)

    @property
    def queue_ns(self) -> float:
        """Mean time in the queue, before the device."""
        return sum(event.queue_ns or 0 for event in self.events) / max(len(self.events), 1)

    @property
    def device_ns(self) -> float:
        """Mean time in the device."""
        return sum(event.duration_ns or 0 for event in self.events) / max(len(self.events), 1)

    @property
    def written_bytes(self) -> int:
        """Bytes written."""
        return sum(event.size_bytes or 0 for event in self.events if event.op != IoOp.READ)

    @property
    def is_write(self) -> bool:
        """Whether most bytes were written; flushes count where no bytes were moved."""
        read = self.size_bytes - self.written_bytes
        return self.written_bytes > read if self.size_bytes else any(event.op != IoOp.READ for event in self.events)

    @property
    def device(self) -> int:
        """The device (dev_t) that took most of the time."""
        used_ns: Counter[int] = Counter()
        for event in self.events:
            used_ns[event.device or 0] += (event.duration_ns or 0) + (event.queue_ns or 0)
        return used_ns.most_common(1)[0][0] if used_ns else 0

    @property
    def text(self) -> str:
        """For people: "12 MiB in 96 requests of 1.7 ms, 1.2 ms of it in the queue"."""
        each = format_ns(self.queue_ns + self.device_ns)
        count = len(self.events)
        requests = "a request" if count == 1 else f"{format_count(count)} requests"
        return f"{format_bytes(self.size_bytes)} in {requests} of {each}, {format_ns(self.queue_ns)} of it in the queue"

    @property
    def facts(self) -> dict[str, Fact]:
        """The figures, for a finding's evidence."""
        return {
            "requests": len(self.events),
            "bytes": self.size_bytes,
            "bytes written": self.written_bytes,
            "in the queue (ns per request)": int(self.queue_ns),
            "in the disk (ns per request)": int(self.device_ns),
        }


class DiskWaits:
    """The waits of a case that were for a block device."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.paths = PathWaits(case)

    @cached_property
    def all_requests(self) -> list[HostEvent]:
        """All block requests during the case."""
        return self.case.evidence.host_events(self.case.window, Source.IO)

    @cached_property
    def own(self) -> list[HostEvent]:
        """Block requests of the process and its workers."""
        return [event for event in self.all_requests if event.pid in self.case.family]

    @cached_property
    def _by_thread(self) -> HostEventIndex:
        return HostEventIndex(self.own, lambda event: event.tid)

    @cached_property
    def _by_process(self) -> HostEventIndex:
        return HostEventIndex(self.own, lambda event: event.pid)

    @cached_property
    def _kernel_requests(self) -> HostEventIndex:
        return HostEventIndex((event for event in self.all_requests if event.is_kernel_thread), lambda _one: 0)

    def requests_of(self, segment: PathSegment) -> list[HostEvent]:
        """Block requests that a wait was for: its thread's own, else its process's, possibly issued by others."""
        own = self._by_thread.touching(segment.tid, segment.begin_ns, segment.end_ns)
        return own or self._by_process.touching(segment.pid, segment.begin_ns, segment.end_ns)

    def is_disk(self, segment: PathSegment) -> bool:
        """Whether a block device or the journal thread ended this wait, or one of its own requests was in flight."""
        if segment.state not in BLOCKED or not self.is_of_family(segment):
            return False
        if segment.waker_kind == "block" or self.requests_of(segment) or self.is_journal(segment):
            return True
        # a writer that dirties pages faster than the disk writes sleeps on a timer until the kernel has written some
        return segment.state == "io" and segment.waker_kind == "timer" and self.is_kernel_busy(segment)

    def is_kernel_busy(self, segment: PathSegment) -> bool:
        """Whether a kernel thread had a slow request in flight; its origin is unknown."""
        return bool(self._kernel_requests.touching(0, segment.begin_ns, segment.end_ns))

    def is_journal(self, segment: PathSegment) -> bool:
        """Whether a thread of a disk file system ended the wait."""
        _, name = waker_of(self.case, segment)
        return name.startswith(_DISK_THREADS) and not name.startswith("kworker")

    def is_of_family(self, segment: PathSegment) -> bool:
        """Whether the wait is of the process or one of its workers."""
        return segment.pid in self.case.family

    @cached_property
    def _own_threads(self) -> frozenset[int]:
        rows = self.case.evidence.offcpu
        return frozenset(rows["tid"][np.isin(rows["pid"], list(self.case.family))].tolist()) | self.case.family

    def is_ended_by_another_job(self, segment: PathSegment) -> bool:
        """Whether a thread outside the process and its workers ended a wait."""
        waker, _ = waker_of(self.case, segment)
        return segment.waker_kind == "thread" and waker not in self._own_threads

    def requests_behind(self, segments: Iterable[PathSegment]) -> Requests:
        """The requests behind these waits, each once: reads or writes, whichever was waited for longer."""
        waited = Counter[bool]()
        by_direction: dict[bool, dict[int, HostEvent]] = {True: {}, False: {}}
        for segment in segments:
            events = self.requests_of(segment)
            if events:
                is_write = Requests(events).is_write
                waited[is_write] += segment.duration_ns
                by_direction[is_write] |= {id(event): event for event in events}
        return Requests(sorted(by_direction[waited[True] > waited[False]].values(), key=begin_ns))

    def line(self, segments: Sequence[PathSegment], claims: Mapping[Bucket, int]) -> CodeLine | None:
        """The line of the longest waiting process; None where it was in GPU calls, which have a line of their own."""
        in_calls_ns = sum(ns for bucket, ns in claims.items() if bucket.part is Part.RETURN_DELAY)
        if 2 * in_calls_ns > sum(claims.values()):
            return None
        longest_wait = longest_waiting(segments)
        same_process = [segment for segment in segments if segment.pid == longest_wait.pid]
        return line_of_kernel_waits(
            self.case.evidence, longest_wait.process or self.case.process.process, self.case.time_ranges, same_process
        )

    def requests_in_baseline(self, requests: Requests) -> Requests:
        """Requests of the same processes to the same device in the baseline."""
        pids, device = {event.pid for event in requests.events}, requests.device
        return Requests([event for event in self.own_in_baseline() if event.pid in pids and event.device == device])

    def own_in_baseline(self) -> list[HostEvent]:
        """Requests of the process and its workers in the baseline."""
        requests = []
        for window in self.case.baseline_windows:
            events = self.case.evidence.host_events(window, Source.IO)
            requests += [
                event for event in events if event.start_ns >= window.begin_ns and event.pid in self.case.family
            ]
        return requests

    @cached_property
    def moves_as_many_bytes(self) -> bool:
        """Whether the job moved no more bytes per step than in the baseline: then the disk was slower."""
        baseline = _size_bytes(self.own_in_baseline()) / max(
            sum(map(self.case.sync_intervals_in, self.case.baseline_windows)), 1
        )
        now = _size_bytes(event for event in self.own if event.start_ns >= self.case.window.begin_ns)
        return now <= _MAX_TIMES_BASELINE_BYTES * baseline * self.case.sync_interval_count

    def others(self, device: int) -> list[tuple[Culprit, int]]:
        """Other processes that used the device meanwhile, with bytes, most time first.

        Of untraced processes only slow requests are recorded, and of those that were slow in the queue, a sample.
        """
        window, family = self.case.window, self.case.family
        used_ns: Counter[tuple[int, str]] = Counter()
        moved_bytes: Counter[tuple[int, str]] = Counter()
        single_bytes: Counter[tuple[int, str]] = Counter()  # of unsampled requests
        sampled: Counter[tuple[int, str]] = Counter()
        for event in self.all_requests:
            overlap = overlap_ns(event, window.begin_ns, window.end_ns)
            is_other = event.device == device and event.pid not in family and event.pid > 0
            if is_other and overlap and event.op in _MOVING_OPS:
                used_ns[event.pid, event.comm] += event.stands_for * overlap
                moved_bytes[event.pid, event.comm] += event.stands_for * (event.size_bytes or 0)
                single_bytes[event.pid, event.comm] += (event.size_bytes or 0) if event.stands_for == 1 else 0
                sampled[event.pid, event.comm] += event.stands_for > 1
        proven = {
            key for key in used_ns if single_bytes[key] >= _MIN_OTHERS_BYTES or sampled[key] >= _MIN_SAMPLED_REQUESTS
        }
        significant = [
            (key, ns) for key, ns in used_ns.most_common() if key in proven and moved_bytes[key] >= _MIN_OTHERS_BYTES
        ]
        most_ns = significant[0][1] if significant else 0
        return [
            (Culprit(pid=pid, name=name, lost_ns=min(ns, window.duration_ns)), moved_bytes[pid, name])
            for (pid, name), ns in significant
            if ns >= 0.1 * most_ns
        ]


def longest_waiting(segments: Sequence[PathSegment]) -> PathSegment:
    """The longest wait of the process with the longest total wait."""
    waited: Counter[int] = Counter()
    for segment in segments:
        waited[segment.pid] += segment.duration_ns
    return max(segments, key=lambda segment: (waited[segment.pid], segment.duration_ns))


def _size_bytes(events: Iterable[HostEvent]) -> int:
    return sum(event.size_bytes or 0 for event in events)


def waker_of(case: Case, segment: PathSegment) -> tuple[int, str]:
    """Pid (tid for an untraced process) and name of the thread that ended a wait; (0, "") if none did."""
    if segment.waker_kind not in {"thread", "kworker"}:
        return 0, ""
    for interval in reversed(case.evidence.critical_paths.intervals(segment.tid, segment.begin_ns, segment.end_ns)):
        if int(interval["start_ns"]) <= segment.begin_ns:
            pid = segment.waker_pid or int(interval["waker_tid"])
            return pid, case.evidence.text(int(interval["waker_name"]))
    return segment.waker_pid, ""


def device_name(device: int) -> str:
    """A device as `lsblk` numbers it: "disk 8:0"."""
    return f"disk {device_number(device)}" if device else "a disk"


def device_number(device: int) -> str:
    """A device as major:minor: "8:0"."""
    return f"{device >> _MINOR_BITS}:{device & ((1 << _MINOR_BITS) - 1)}"
