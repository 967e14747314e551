"""The tracks of a recording: a group per node, processes with their node and rank, threads, streams and counters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from ingero.identity import identity_text
from ingero.serve.export.model import Track, TrackKind, Unit
from ingero.serve.export.rows import Rows
from ingero.store.reader import Reader
from ingero.store.records import Process
from ingero.store.streaming.names import Names
from ingero.store.streaming.stream_rows import EventRow, OffCpuRow

_PID_LIMIT = 1 << 22  # the kernel's largest pid: those of other nodes, and reused ones, get numbers beyond it


@dataclass(slots=True)
class GpuStream:
    """The track of a GPU stream with the further rows that overlapping slices need."""

    tracks: list[Track]
    rows: Rows


class Tracks:
    """Hands out tracks by what they stand for. New ones wait in `new` until they are written.

    numbers: for them; those of one trace share one.
    """

    def __init__(self, reader: Reader, names: Names, numbers: Iterator[int] | None = None) -> None:
        self.new: list[Track] = []
        self._names = names
        self._nodes = {session.session: session.node for session in reader.sessions()}
        self._processes = {one.process: one for one in reader.processes(only_traced=False)}
        self._containers = {one.cgroup_id: one.pod or one.container_id for one in reader.containers()}
        self._made: dict[tuple[object, ...], Track] = {}
        self._gpu_streams: dict[tuple[int, str], GpuStream] = {}
        self._calls: dict[tuple[int, int, int, int], GpuStream] = {}
        self._used_pids: set[int] = set()
        self._numbers = numbers or count(1)

    def node(self, session: int) -> Track:
        """The group track of a whole node."""
        name = self._nodes.get(session, "")
        return self._made.get(("node", name)) or self._keep(
            Track(number=self._next(), kind=TrackKind.GROUP, name=name or "machine", order=-1), "node", name
        )

    def process(self, session: int, process: int, pid: int, comm: str = "") -> Track:
        """A process; `comm` names one that was not traced."""
        facts = self._processes.get(process)
        if facts and facts.pid != pid:
            facts = None  # a row that came before or after its process had this number
        key = ("process", process) if facts else ("pid", session, pid)
        found = self._made.get(key)
        if found:
            return found
        node = self._nodes.get(facts.session if facts else session, "")
        shown_pid = self._free_pid(pid)
        name = (facts.name if facts else comm) or "process"
        if shown_pid != pid:
            name = f"{name} [{pid}]"  # every viewer shows the number beside the name; here it is not the pid
        heading = ", ".join(part for part in (node, self._identity(facts)) if part)
        rank = facts.rank if facts else None
        track = Track(
            number=self._next(),
            kind=TrackKind.PROCESS,
            name=f"{heading}: {name}" if heading else name,
            pid=shown_pid,
            order=rank if rank is not None else _PID_LIMIT if facts else 2 * _PID_LIMIT,
            command=facts.cmdline if facts else "",
        )
        return self._keep(track, *key)

    def thread(self, row: EventRow | OffCpuRow) -> Track:
        """The thread of a row."""
        return self._made.get(("thread", row.session, row.process, row.pid, row.tid)) or self.thread_of(
            row.session, row.process, row.pid, row.tid, self._names.text(row.comm)
        )

    def thread_of(self, session: int, process: int, pid: int, tid: int, comm: str) -> Track:
        """A thread of a process."""
        key = ("thread", session, process, pid, tid)
        found = self._made.get(key)
        if found:
            return found
        parent = self.process(session, process, pid, comm)
        track = Track(
            number=self._next(),
            kind=TrackKind.THREAD,
            name=(self._names.thread(process, tid) if process else "") or comm or "thread",
            parent=parent.number,
            pid=parent.pid,
            tid=tid + parent.pid - pid,
            order=0 if tid == pid else 1,
        )
        return self._keep(track, *key)

    def waker(self, session: int, tid: int, comm: str, time_ns: int) -> int:
        """The number of the track for a thread that woke another: beside its slices, if it was traced itself."""
        thread = self._made.get(("waker", session, tid)) or self._waker(session, tid, comm)
        if thread.kind is TrackKind.THREAD:
            return self.off_cpu(thread, time_ns, time_ns)
        return thread.number

    def _waker(self, session: int, tid: int, comm: str) -> Track:
        key = ("waker", session, tid)
        process = self._names.process_of_thread(session, tid)
        if process:
            track = self.thread_of(session, process, self._processes[process].pid, tid, comm)
            self._made[key] = track
            return track
        name = f"{comm or 'thread'} [{tid}], not traced"
        node = self.node(session)
        return self._keep(
            Track(number=self._next(), kind=TrackKind.GPU_STREAM, name=name, parent=node.number, order=4), *key
        )

    def off_cpu(self, thread: Track, start_ns: int, end_ns: int) -> int:
        """The number of the track for an interval off the CPU, beside its thread."""
        return self.gpu_stream(thread, f"{thread.name}: off the CPU", start_ns=start_ns, end_ns=end_ns)

    def gpu_stream(self, parent: Track, name: str, *, start_ns: int, end_ns: int, can_nest: bool = True) -> int:
        """The number of the track for a slice in a stream of that name below `parent`."""
        gpu_stream = self._gpu_streams.get((parent.number, name))
        if gpu_stream is None:
            first = Track(number=self._next(), kind=TrackKind.GPU_STREAM, name=name, parent=parent.number, order=2)
            gpu_stream = self._gpu_streams[parent.number, name] = GpuStream(
                [self._keep(first)], Rows(can_nest=can_nest)
            )
        return self._row(gpu_stream, start_ns, end_ns)

    def on_thread(self, row: EventRow, end_ns: int) -> int:
        """The number of the track for a call: its thread, as long as calls nest."""
        key = (row.session, row.process, row.pid, row.tid)
        gpu_stream = self._calls.get(key)
        if gpu_stream is None:
            gpu_stream = self._calls[key] = GpuStream([self.thread(row)], Rows(can_nest=True))
        return self._row(gpu_stream, row.start_ns, end_ns)

    def counter(self, parent: Track, name: str, unit: Unit) -> Track:
        """A counter below `parent`."""
        key = ("counter", parent.number, name)
        return self._made.get(key) or self._keep(
            Track(number=self._next(), kind=TrackKind.COUNTER, name=name, parent=parent.number, unit=unit, order=3),
            *key,
        )

    def container(self, cgroup_id: int) -> str:
        """The container or pod of a cgroup; "" if it is none."""
        return self._containers.get(cgroup_id, "")

    def _row(self, gpu_stream: GpuStream, start_ns: int, end_ns: int) -> int:
        if end_ns == start_ns:
            return gpu_stream.tracks[0].number
        number = gpu_stream.rows.place(start_ns, end_ns)
        if number == len(gpu_stream.tracks):
            first = gpu_stream.tracks[0]
            name = first.name if first.kind is TrackKind.GPU_STREAM else f"{first.name} (overlapping)"
            parent = first.parent if first.kind is TrackKind.GPU_STREAM else first.number
            further = Track(number=self._next(), kind=TrackKind.GPU_STREAM, name=name, parent=parent, order=first.order)
            gpu_stream.tracks.append(self._keep(further))
        return gpu_stream.tracks[number].number

    def _identity(self, facts: Process | None) -> str:
        if facts is None:
            return ""
        job = (facts.scheduler, facts.job, facts.job_step)
        return identity_text(facts.rank, facts.world_size, self.container(facts.cgroup_id or 0), job)

    def _free_pid(self, pid: int) -> int:
        while pid in self._used_pids:
            pid += _PID_LIMIT
        self._used_pids.add(pid)
        return pid

    def _next(self) -> int:
        return next(self._numbers)

    def _keep(self, track: Track, *key: object) -> Track:
        self.new.append(track)
        if key:
            self._made[key] = track
        return track
