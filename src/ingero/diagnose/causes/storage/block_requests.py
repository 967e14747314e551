"""Block requests behind the waits of a path: whose they were, what they moved, and what else the device had to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.case_paths import BLOCKED
from ingero.diagnose.cases.kernel_waits import PathWaits
from ingero.diagnose.evidence.host_event_index import Timeline, begin_ns, overlap_ns
from ingero.diagnose.findings import Bucket, CodeLine, Culprit, Fact, Part
from ingero.diagnose.offcpu.critical_path import Segment
from ingero.diagnose.samples.stack_samples import waited_at
from ingero.ops import IoOp, Source
from ingero.store.host_events import HostEvent
from ingero.units import format_bytes, format_count, format_ns

_MINOR_BITS = 20
_MOVES = (IoOp.READ, IoOp.WRITE)
_DISK_THREADS = ("jbd2/", "xfsaild/", "btrfs-", "kworker", "dm-", "loop", "txg_sync")
_MIN_OTHERS_BYTES = 1 << 20
_MIN_SAMPLED = 5  # requests that stand for others, before these are held against anybody: one may be the only one
_AS_MUCH = 1.1  # times the bytes


@dataclass(frozen=True, slots=True)
class Requests:
    """Some block requests taken together."""

    events: Sequence[HostEvent]

    @property
    def size_bytes(self) -> int:
        """What they moved."""
        return sum(one.size_bytes or 0 for one in self.events)

    @property
    def queue_ns(self) -> float:
        """Mean time before the device had one."""
        return sum(one.queue_ns or 0 for one in self.events) / max(len(self.events), 1)

    @property
    def device_ns(self) -> float:
        """Mean time in the device."""
        return sum(one.duration_ns or 0 for one in self.events) / max(len(self.events), 1)

    @property
    def written_bytes(self) -> int:
        """Of them."""
        return sum(one.size_bytes or 0 for one in self.events if one.op != IoOp.READ)

    @property
    def is_write(self) -> bool:
        """Whether most of it was written; flushes count where nothing was moved."""
        read = self.size_bytes - self.written_bytes
        return self.written_bytes > read if self.size_bytes else any(one.op != IoOp.READ for one in self.events)

    @property
    def device(self) -> int:
        """The device that took most of the time."""
        spent: Counter[int] = Counter()
        for one in self.events:
            spent[one.device or 0] += (one.duration_ns or 0) + (one.queue_ns or 0)
        return spent.most_common(1)[0][0] if spent else 0

    @property
    def text(self) -> str:
        """In words: "12 MiB in 96 requests of 1.7 ms, 1.2 ms of it in the queue"."""
        each = format_ns(self.queue_ns + self.device_ns)
        count = len(self.events)
        requests = "a request" if count == 1 else f"{format_count(count)} requests"
        return f"{format_bytes(self.size_bytes)} in {requests} of {each}, {format_ns(self.queue_ns)} of it in the queue"

    @property
    def facts(self) -> dict[str, Fact]:
        """The numbers."""
        return {
            "requests": len(self.events),
            "bytes": self.size_bytes,
            "bytes written": self.written_bytes,
            "in the queue (ns per request)": int(self.queue_ns),
            "in the disk (ns per request)": int(self.device_ns),
        }


class DiskWaits:
    """Which waits of a case were for a block device."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.paths = PathWaits(case)

    @cached_property
    def everything(self) -> list[HostEvent]:
        """The requests of the case, whoever's."""
        return self.case.evidence.host_events(self.case.window, Source.IO)

    @cached_property
    def own(self) -> list[HostEvent]:
        """Those of the process and its workers."""
        return [one for one in self.everything if one.pid in self.case.family]

    @cached_property
    def _of_thread(self) -> Timeline:
        return Timeline(self.own, lambda one: one.tid)

    @cached_property
    def _of_process(self) -> Timeline:
        return Timeline(self.own, lambda one: one.pid)

    @cached_property
    def _of_kernel(self) -> Timeline:
        return Timeline((one for one in self.everything if one.is_kernel_thread), lambda _one: 0)

    def requests_of(self, segment: Segment) -> list[HostEvent]:
        """The block requests that a wait was for: its thread's own, else what it can have started through others."""
        own = self._of_thread.touching(segment.tid, segment.begin_ns, segment.end_ns)
        return own or self._of_process.touching(segment.pid, segment.begin_ns, segment.end_ns)

    def is_disk(self, segment: Segment) -> bool:
        """Whether a device, or the journal's thread, ended this wait, or a request of its own was under way."""
        if segment.state not in BLOCKED or not self.is_ours(segment):
            return False
        if segment.waker_kind == "block" or self.requests_of(segment) or self.is_journal(segment):
            return True
        # whoever dirties pages faster than the disk takes them sleeps on a timer until the kernel has written some
        return segment.state == "io" and segment.waker_kind == "timer" and self.kernel_was_busy(segment)

    def kernel_was_busy(self, segment: Segment) -> bool:
        """Whether a kernel thread had a slow request under way: whose, is not known."""
        return bool(self._of_kernel.touching(0, segment.begin_ns, segment.end_ns))

    def is_journal(self, segment: Segment) -> bool:
        """Whether a thread of a file system on a disk ended it."""
        _, name = waker_of(self.case, segment)
        return name.startswith(_DISK_THREADS) and not name.startswith("kworker")

    def is_ours(self, segment: Segment) -> bool:
        """Of the process or of one of its workers."""
        return segment.pid in self.case.family

    @cached_property
    def _own_threads(self) -> frozenset[int]:
        rows = self.case.evidence.offcpu
        return frozenset(rows["tid"][np.isin(rows["pid"], list(self.case.family))].tolist()) | self.case.family

    def is_ended_by_stranger(self, segment: Segment) -> bool:
        """Whether a thread of neither the process nor its workers ended a wait."""
        waker, _ = waker_of(self.case, segment)
        return segment.waker_kind == "thread" and waker not in self._own_threads

    def behind(self, segments: Iterable[Segment]) -> Requests:
        """The requests behind these waits, each once: reads or writes, whichever was waited for longer."""
        waited = Counter[bool]()
        found: dict[bool, dict[int, HostEvent]] = {True: {}, False: {}}
        for one in segments:
            events = self.requests_of(one)
            if events:
                is_write = Requests(events).is_write
                waited[is_write] += one.duration_ns
                found[is_write] |= {id(event): event for event in events}
        return Requests(sorted(found[waited[True] > waited[False]].values(), key=begin_ns))

    def line(self, segments: Sequence[Segment], claims: Mapping[Bucket, int]) -> CodeLine | None:
        """Where whoever waited longest waited; None where that was in GPU calls, which have a line of their own."""
        in_calls_ns = sum(ns for bucket, ns in claims.items() if bucket.part is Part.RETURN_DELAY)
        if 2 * in_calls_ns > sum(claims.values()):
            return None
        main = longest(segments)
        mine = [one for one in segments if one.pid == main.pid]
        return waited_at(self.case.evidence, main.process or self.case.process.process, self.case.time_ranges, mine)

    def usual(self, requests: Requests) -> Requests:
        """Requests of the same processes to the same device in the reference."""
        pids, device = {one.pid for one in requests.events}, requests.device
        return Requests([one for one in self.usual_own() if one.pid in pids and one.device == device])

    def usual_own(self) -> list[HostEvent]:
        """Requests of the process and its workers in the reference."""
        found = []
        for window in self.case.baselines:
            events = self.case.evidence.host_events(window, Source.IO)
            found += [one for one in events if one.start_ns >= window.begin_ns and one.pid in self.case.family]
        return found

    @cached_property
    def asks_as_usual(self) -> bool:
        """Whether the process and its workers moved no more bytes a step than in the reference: the disk was slower."""
        usual = _size_bytes(self.usual_own()) / max(sum(map(self.case.sync_intervals_in, self.case.baselines)), 1)
        now = _size_bytes(one for one in self.own if one.start_ns >= self.case.window.begin_ns)
        return now <= _AS_MUCH * usual * self.case.sync_interval_count

    def others(self, device: int) -> list[tuple[Culprit, int]]:
        """Processes beside the case's own that used the device meanwhile, with bytes, most time first.

        Of processes that are not traced only slow requests are recorded, of those that were slow in the queue some.
        """
        window, family = self.case.window, self.case.family
        spent: Counter[tuple[int, str]] = Counter()
        moved: Counter[tuple[int, str]] = Counter()
        whole: Counter[tuple[int, str]] = Counter()  # of the requests that stand for themselves alone
        sampled: Counter[tuple[int, str]] = Counter()
        for one in self.everything:
            overlap = overlap_ns(one, window.begin_ns, window.end_ns)
            is_other = one.device == device and one.pid not in family and one.pid > 0
            if is_other and overlap and one.op in _MOVES:
                spent[one.pid, one.comm] += one.stands_for * overlap
                moved[one.pid, one.comm] += one.stands_for * (one.size_bytes or 0)
                whole[one.pid, one.comm] += (one.size_bytes or 0) if one.stands_for == 1 else 0
                sampled[one.pid, one.comm] += one.stands_for > 1
        sure = {key for key in spent if whole[key] >= _MIN_OTHERS_BYTES or sampled[key] >= _MIN_SAMPLED}
        weighty = [(key, ns) for key, ns in spent.most_common() if key in sure and moved[key] >= _MIN_OTHERS_BYTES]
        most = weighty[0][1] if weighty else 0
        return [
            (Culprit(pid=pid, name=name, lost_ns=min(ns, window.duration_ns)), moved[pid, name])
            for (pid, name), ns in weighty
            if ns >= 0.1 * most
        ]


def longest(segments: Sequence[Segment]) -> Segment:
    """A wait of the process that waited longest in all."""
    waited: Counter[int] = Counter()
    for one in segments:
        waited[one.pid] += one.duration_ns
    return max(segments, key=lambda one: (waited[one.pid], one.duration_ns))


def _size_bytes(events: Iterable[HostEvent]) -> int:
    return sum(one.size_bytes or 0 for one in events)


def waker_of(case: Case, segment: Segment) -> tuple[int, str]:
    """The pid (of a process that is not traced the thread) and name of who ended a wait; (0, "") where none did."""
    if segment.waker_kind not in {"thread", "kworker"}:
        return 0, ""
    for interval in reversed(case.evidence.waits.intervals(segment.tid, segment.begin_ns, segment.end_ns)):
        if int(interval["start_ns"]) <= segment.begin_ns:
            pid = segment.waker_pid or int(interval["waker_tid"])
            return pid, case.evidence.text(int(interval["waker_name"]))
    return segment.waker_pid, ""


def device_name(device: int) -> str:
    """A device as `lsblk` numbers it: "disk 8:0"."""
    return f"disk {device_number(device)}" if device else "a disk"


def device_number(device: int) -> str:
    """The same without a word: "8:0"."""
    return f"{device >> _MINOR_BITS}:{device & ((1 << _MINOR_BITS) - 1)}"
