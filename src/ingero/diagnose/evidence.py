"""What a recording says about a window, read when a rule first asks for it and kept.

No SQL here and no clock: `store.reader` answers, and the same evidence gives the same diagnosis.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ingero.diagnose.gaps import Gaps
from ingero.diagnose.kept_answers import Answer
from ingero.diagnose.kept_reads import KeptReads
from ingero.diagnose.launching import Launching, launching_threads
from ingero.diagnose.leads import Leads, awaited, leads
from ingero.diagnose.main_stream import judged_alone
from ingero.diagnose.model import CodeLine
from ingero.diagnose.offcpu_blocks import OffcpuBlocks
from ingero.diagnose.pacing import PacedBy, as_paced, paces, refills
from ingero.diagnose.profile.report import Profiles, profiles
from ingero.diagnose.run_ahead import joined, joined_like
from ingero.diagnose.step_gpu_streams import ProcessSteps, pacing_streams, process_steps
from ingero.diagnose.wait_windows import WaitWindows
from ingero.events import STATES as CLOCK_NAMES
from ingero.events import SyncIntervalFlag
from ingero.identity import job_text, short_id
from ingero.ops import Library, Source, is_launch
from ingero.store import arrays
from ingero.store.call_stacks import StackBook
from ingero.store.conditions import LONGEST_PERIOD_NS
from ingero.store.gpu_streams import GpuStream
from ingero.store.host_events import HostEvent
from ingero.store.machine import GpuUse, Scheduling
from ingero.store.reader import Reader
from ingero.store.records import (
    PYTHON_LINES,
    Communicator,
    Container,
    CulpritTotals,
    InFlight,
    OpShare,
    Process,
    Session,
    Thread,
    ThreadStateTotals,
    Throttling,
    WakerTotals,
    Window,
)
from ingero.store.spans import Spans
from ingero.store.waiters import Waiters
from ingero.units import SECOND_NS

if TYPE_CHECKING:
    from ingero.diagnose.gpu_idle import GpuIdle

Array = np.ndarray[Any, np.dtype[Any]]

_UNUSABLE = int(SyncIntervalFlag.COVERAGE_CHANGED | SyncIntervalFlag.FIRST_UNKNOWN)
_STOPPED = 0.5  # of the clocks of its threads
_NO_SAMPLES: Array = np.zeros(0, arrays.SAMPLE_DTYPE)
_NO_SECONDS: Array = np.zeros(0, arrays.THREAD_STATE_SECOND_DTYPE)

# What a rule may need, and the table that holds it. A source of events that is not traced has its name in `not_traced`.
SYNC_INTERVALS = "sync_intervals"
STATES = "thread_state_seconds"
OFFCPU = "offcpu"
CULPRITS = "culprits"
OP_STATS = "op_stats"
SAMPLES = "stack_samples"
GPU_ACTIVITIES = "gpu_activities"  # only imported profiles have any
LAUNCHES = "launches"
ENQUEUES = "enqueues"  # all of them: what a sync interval's GPU time is known by
_TABLES = {
    name: f"raw_{name}" for name in (SYNC_INTERVALS, STATES, OFFCPU, CULPRITS, OP_STATS, "wakers", "in_flight", "halts")
}
_TABLES |= {name: f"raw_{name}" for name in (SAMPLES, "gpu_samples", "scheduling", "allocations", "communicators")}
_TABLES |= {"cpu_seconds": "raw_cpu_seconds", GPU_ACTIVITIES: "raw_gpu_activities"}
# Durations of calls, and counts, that tracing may give up for a while beside the rest of a table.
_TABLES |= dict.fromkeys((LAUNCHES, "launch_times", "allocation_times", "copies"), "raw_op_stats")
_TABLES |= {ENQUEUES: "raw_sync_intervals"}
# What is not there of a process one of whose libraries has no probes, or whose interpreter cannot be read.
_SEEN_BY = {
    Library.NCCL.value: Source.NCCL.name,
    Library.CUDA.value: SYNC_INTERVALS,
    Library.CUDART.value: OP_STATS,
    PYTHON_LINES: SAMPLES,
}


def _usable(gpu_streams: Iterable[GpuStream]) -> list[GpuStream]:
    """Without the sync intervals that nothing can be compared with."""
    found = []
    for gpu_stream in gpu_streams:
        mine = gpu_stream.sync_intervals
        usable = (mine["prev_sync_end_ns"] > 0) & ((mine["flags"] & _UNUSABLE) == 0)
        found.append(gpu_stream if usable.all() else replace(gpu_stream, sync_intervals=mine[usable]))
    return [gpu_stream for gpu_stream in found if len(gpu_stream.sync_intervals)]


class Evidence:
    """The evidence of one window. Arrays are those of `store.arrays`; everything is read-only.

    is_live: the recording goes on, and what is read is read again in a second; verdicts are for its end. reads: what
    was read for other windows, too.
    """

    def __init__(
        self, reader: Reader, window: Window, *, is_live: bool = False, reads: KeptReads | None = None
    ) -> None:
        self.reader = reader
        self.window = window
        self.is_live = is_live
        self._reads = reads or KeptReads()
        self.gpu_idle: dict[int, GpuIdle] = {}  # what `diagnose.gpu_idle` has found, by process
        self._culprits: dict[tuple[tuple[Window, ...], int], list[CulpritTotals]] = {}
        self._ops: dict[tuple[tuple[Window, ...], int], list[OpShare]] = {}
        self._clocks: dict[tuple[int, int], list[ThreadStateTotals]] = {}
        self._texts: dict[int, str] = {0: ""}
        self._launching: dict[int, Launching] = {}
        self._leads: dict[int, Leads] = {}
        self._offcpu = OffcpuBlocks(reader.offcpu_rows)
        self._samples: dict[tuple[tuple[Window, ...], int], Array] = {}
        self._waiters: dict[tuple[int, int, int], Waiters] = {}
        self._host_events: dict[tuple[int, int, Source], list[HostEvent]] = {}

    # What was there

    @cached_property
    def sessions(self) -> list[Session]:
        """The recordings that touch the window."""
        return [
            one
            for one in self.reader.sessions()
            if one.started_ns < self.window.end_ns and (one.stopped_ns or one.last_seen_ns) >= self.window.begin_ns
        ]

    def counting_since_ns(self, session: int) -> int:
        """Begin of the first second of a recording; 0 where that does not touch the window."""
        started = (one.started_ns for one in self.sessions if one.session == session)
        return next((self.reader.counting_since_ns(at) for at in started), 0)

    @cached_property
    def not_traced(self) -> dict[str, str]:
        """Sources of which nothing can be in the recording, with the reason."""
        found: dict[str, str] = {}
        for session in self.sessions:
            found |= json.loads(session.not_traced)
        if self.reader.missing_end:
            found["end of the recording"] = f"the file lacks {self.reader.missing_end}"
        return found

    def missing(self, needs: Sequence[str]) -> str:
        """Why a rule with these needs cannot be evaluated; "" when it can."""
        for name in needs:
            if name in self.not_traced:
                return f"{name} not traced: {self.not_traced[name]}"
            if not self.reader.is_recorded(_TABLES.get(name, name)):
                return f"{name.replace('_', ' ')}: not in this recording"
            if name == SAMPLES and any(json.loads(one.options).get("stack") is False for one in self.sessions):
                return "samples not taken: switched off (stack)"
        return ""

    def unseen(self, needs: Iterable[str]) -> list[str]:
        """Why a part of what a rule needs is not there: files whose calls, or lines, could not be seen."""
        return [reason for name in needs for reason in self._unseen.get(name, ())]

    @cached_property
    def _unseen(self) -> dict[str, list[str]]:
        sessions = {one.session for one in self.sessions}
        found: dict[str, dict[str, None]] = defaultdict(dict)
        for one in self.reader.unseen_files():
            if one.session in sessions and one.symbol in _SEEN_BY:
                found[_SEEN_BY[one.symbol]][one.reason] = None
        return {name: list(reasons) for name, reasons in found.items()}

    @cached_property
    def gaps(self) -> Gaps:
        """What was not traced for a while."""
        steps = self.reader.overhead_levels(self.window) if self.reader.is_recorded("raw_overhead_levels") else []
        return Gaps(steps, self.sessions, self.window)

    @cached_property
    def processes(self) -> dict[int, Process]:
        """Every process seen, by its number."""
        return {one.process: one for one in self.read_processes()}

    def read_processes(self) -> list[Process]:
        """The processes that there is something to say of."""
        return self.reader.processes(only_traced=False)

    @cached_property
    def containers(self) -> dict[int, Container]:
        """The control groups, by id."""
        return (
            {one.cgroup_id: one for one in self.reader.containers()} if self.reader.is_recorded("raw_cgroups") else {}
        )

    def container_of(self, cgroup_id: int | None) -> str:
        """The name people know: the pod, or the short id of the container; "" on the host."""
        one = self.containers.get(cgroup_id or 0)
        if one is None or not one.container_id:
            return ""
        return f"pod {one.pod}" if one.pod else f"container {short_id(one.container_id)}"

    def rank_name(self, number: int) -> str:
        """The rank of a process, its pid where that is not known, or another that it trains with says the same."""
        process = self.processes[number]
        is_own = all(self.processes[one].rank != process.rank for one in self.peers(number) if one in self.processes)
        return f"rank {process.rank}" if process.rank is not None and is_own else f"pid {process.pid}"

    def job_of(self, pid: int, cgroup_id: int | None = None) -> str:
        """The scheduler's job of a process as texts name it, by itself or by its group; "" where none is known."""
        process = self.process_at(pid)
        if process is not None and process.job:
            return job_text(process.scheduler, process.job, process.job_step)
        group = self.containers.get(cgroup_id or (process.cgroup_id if process else None) or 0)
        return job_text(group.scheduler, group.job, group.job_step) if group else ""

    def process_at(self, pid: int) -> Process | None:
        """The process that had this pid last, if it was traced."""
        return self._by_pid.get(pid)

    @cached_property
    def _by_pid(self) -> dict[int, Process]:
        return {one.pid: one for one in sorted(self.processes.values(), key=lambda one: one.start_ns) if one.is_traced}

    @cached_property
    def children(self) -> dict[int, list[Process]]:
        """Traced processes by the number of their traced parent."""
        found: dict[int, list[Process]] = defaultdict(list)
        for one in self.processes.values():
            parent = self._by_pid.get(one.parent_pid or 0)
            if parent and one.is_traced and parent.process != one.process:
                found[parent.process].append(one)
        return found

    def family(self, process: int) -> set[int]:
        """Pids of a process, its traced descendants and, where it is one of several ranks' workers, not its parent."""
        pids: set[int] = set()
        todo = [process]
        while todo:
            number = todo.pop()
            children = [one for one in self.children.get(number, ()) if one.pid not in pids]
            pids |= {self.processes[number].pid, *(one.pid for one in children)}
            todo += [one.process for one in children]
        return pids

    @cached_property
    def communicators(self) -> list[Communicator]:
        """NCCL communicators of every traced rank."""
        return self.reader.communicators() if self.reader.is_recorded("raw_communicators") else []

    def peers(self, process: int) -> set[int]:
        """Numbers of the traced ranks that share a communicator with this one, itself left out.

        Where a communicator was made before tracing began it has no name that ranks share; then the ranks of one
        launcher that use communicators as old are its peers.
        """
        mine = [one for one in self.communicators if one.process == process]
        hashes = {one.comm_id_hash for one in mine if one.comm_id_hash is not None}
        found = {one.process for one in self.communicators if one.comm_id_hash in hashes}
        if any(one.comm_id_hash is None for one in mine):
            parent = self.processes[process].parent_pid
            nameless = {one.process for one in self.communicators if one.comm_id_hash is None}
            found |= {number for number in nameless if self.processes[number].parent_pid == parent}
        return found - {process}

    def job(self, process: int) -> set[int]:
        """Pids of a process, of the ranks that it shares a communicator with, and of the workers of them all."""
        return {pid for one in (process, *self.peers(process)) for pid in self.family(one)}

    def text(self, number: int) -> str:
        """The text behind a number of a column that says "string"."""
        number = int(number)
        if number not in self._texts:
            self._texts |= {number: ""} | self.reader.texts([number])
        return self._texts[number]

    @cached_property
    def profiles(self) -> Profiles:
        """What a profiler measured; only an imported recording has any."""
        return Profiles(reports=(), collectives=()) if self.is_live else profiles(self.reader, self.window)

    # Time

    @cached_property
    def main_streams(self) -> dict[int, GpuStream]:
        """The stream that paces each process; of two the one with more device work. Streams are never summed."""
        if not self.reader.is_recorded("raw_sync_intervals"):
            return {}
        synced = judged_alone(self.synced_streams, self._launches)
        profiled = {report.process.process for report in self.profiles.reports}  # of these the GPU's time is measured
        steps = [gpu_stream for gpu_stream in self.repeated_steps if gpu_stream.process not in profiled]
        gpu_streams = pacing_streams(_usable(synced), _usable(steps)).items()
        return {
            number: replace(one, sync_intervals=joined(one.sync_intervals)) if one.is_steps else one
            for number, one in gpu_streams
        }

    @cached_property
    def steps(self) -> dict[int, ProcessSteps]:
        """The steps of each process and how they are known, by its number."""
        return process_steps(self.main_streams, self.repeated_steps, self.profiles.reports)

    def _launches(self, process: int) -> float:
        calls = self.ops((self.window,), process) if self.reader.is_recorded("raw_op_stats") else []
        return sum(one.count for one in calls if is_launch(one.source, one.op))

    @cached_property
    def synced_streams(self) -> list[GpuStream]:
        """The sync intervals of every stream that ended in the window, in short."""
        return self.read_gpu_streams()

    @cached_property
    def repeated_steps(self) -> list[GpuStream]:
        """The steps by repetition of every process in the window, in short."""
        return self.read_step_gpu_streams()

    def read_gpu_streams(self) -> list[GpuStream]:
        """Every stream of the window, in short."""
        return self.reader.gpu_streams(self.window)

    def read_step_gpu_streams(self) -> list[GpuStream]:
        """The steps by repetition of every process in the window, in short."""
        return self.reader.step_gpu_streams(self.window)

    @cached_property
    def paces(self) -> dict[int, dict[int, PacedBy]]:
        """Who paces the steps of each type, of the processes whose steps are found by repetition."""
        return {
            process: paces(gpu_stream.sync_intervals)
            for process, gpu_stream in self.main_streams.items()
            if gpu_stream.is_steps
        }

    @cached_property
    def gpu_streams(self) -> dict[int, Array]:
        """The sync intervals of the main stream of each process in short (`store.arrays.GPU_STREAM_DTYPE`), by their
        end.

        Of steps by repetition without those that fill an emptied queue.
        """
        return {
            process: self._as_paced(gpu_stream.sync_intervals, process)
            for process, gpu_stream in self.main_streams.items()
        }

    @cached_property
    def _refill_ends(self) -> dict[int, Array]:
        """When the steps ended that fill an emptied queue, of the processes whose steps are found by repetition."""
        gpu_streams = {
            process: gpu_stream.sync_intervals
            for process, gpu_stream in self.main_streams.items()
            if gpu_stream.is_steps
        }
        return {
            process: steps["sync_end_ns"][refills(steps, self.paces[process])] for process, steps in gpu_streams.items()
        }

    def _as_paced(self, sync_intervals: Array, process: int) -> Array:
        if process not in self.paces:
            return sync_intervals
        judged: Array = sync_intervals[~np.isin(sync_intervals["sync_end_ns"], self._refill_ends[process])]
        known = self.leads(process)
        return as_paced(judged, self.paces[process], known.of(judged), known.ahead_ns)

    def leads(self, process: int) -> Leads:
        """Who sets the pace of a process's steps by repetition, as far as waits tell."""
        if process not in self._leads:
            waits = awaited(self.synced_streams, process)
            self._leads[process] = leads(self.main_streams[process].sync_intervals, waits)
        return self._leads[process]

    @cached_property
    def _gpu_stream_ends(self) -> dict[int, Array]:
        """When their sync intervals ended: side by side in memory, for searching."""
        return {
            process: np.ascontiguousarray(sync_intervals["sync_end_ns"])
            for process, sync_intervals in self.gpu_streams.items()
        }

    def gpu_stream_in(self, window: Window, process: int) -> Array:
        """The sync intervals of a process's main stream that ended in a part of the window, in short."""
        first, last = np.searchsorted(self._gpu_stream_ends[process], (window.begin_ns, window.end_ns))
        mine: Array = self.gpu_streams[process][first:last]
        return mine

    def sync_intervals(self, window: Window, process: int) -> Array:
        """The same as whole sync intervals (`store.arrays.SYNC_INTERVAL_DTYPE`).

        Where the size limit has taken them, they are made from what is left: without clocks.
        """
        if self.main_streams[process].is_steps:  # kept apart: as time goes on a process may be judged by the other kind
            return self._as_paced(self._joined_steps(window, process), process)
        return self._reads.get(window, process, lambda: self._fed(self._read_sync_intervals(window, process), process))

    def launching(self, process: int) -> Launching:
        """The threads of a process that launch: within a case launches may be given up, so those of all the window."""
        if process not in self._launching:
            launching = self.reader.launching_threads(self.window, process=process)
            names = [(one.tid, one.name) for one in self._every_thread if one.process == process]
            self._launching[process] = Launching(launching_threads(launching, names), self.waits.path)
        return self._launching[process]

    def _fed(self, sync_intervals: Array, process: int) -> Array:
        return self.launching(process).as_one(sync_intervals) if self.has_offcpu else sync_intervals

    def _joined_steps(self, window: Window, process: int) -> Array:
        short = self.gpu_stream_in(window, process)
        is_joined = len(short) > 0 and bool(short["joined"].any())
        if is_joined:  # the first may have begun with steps that ended before the window
            window = Window(begin_ns=min(window.begin_ns, int(short["prev_sync_end_ns"][0]) + 1), end_ns=window.end_ns)
        steps = self._reads.get(window, -process, lambda: self._fed(self._read_steps(window, process), process))
        return joined_like(steps, short) if is_joined else steps

    def _read_steps(self, window: Window, process: int) -> Array:
        steps: Array = self.reader.steps(window, process=process)
        usable: Array = steps[(steps["flags"] & _UNUSABLE) == 0]
        return usable

    def _read_sync_intervals(self, window: Window, process: int) -> Array:
        gpu_stream = self.main_streams[process]
        mine: Array = self.reader.sync_intervals(window, process=process)
        mine = mine[(mine["stream"] == gpu_stream.stream) & (mine["device"] == gpu_stream.device)]
        mine = mine[(mine["prev_sync_end_ns"] > 0) & ((mine["flags"] & _UNUSABLE) == 0)]
        known = self.gpu_stream_in(window, process)
        if len(mine) >= len(known):
            return mine
        made: Array = arrays.without_clocks(known, process=process, pid=gpu_stream.pid)
        made["device"], made["stream"] = gpu_stream.device, gpu_stream.stream
        return made

    @property
    def has_offcpu(self) -> bool:
        """Whether intervals off the CPU can be in the recording."""
        return not self.missing((OFFCPU,))

    @cached_property
    def offcpu(self) -> Array:
        """Intervals off the CPU of every traced thread, all of the window: many. `offcpu_in` reads a part."""
        return self.reader.offcpu_rows(self.window)

    def offcpu_in(self, window: Window) -> Array:
        """Those that touch a part of the window."""
        return self._offcpu.rows(window)

    @property
    def no_sync_intervals(self) -> Array:
        """None, of the whole kind."""
        return np.zeros(0, arrays.SYNC_INTERVAL_DTYPE)

    @cached_property
    def waits(self) -> WaitWindows:
        """The paths through them."""
        return WaitWindows(self._offcpu.rows, self.threads)

    def of_paths(self, key: Hashable, until_ns: int, ask: Callable[[], Answer]) -> Answer:
        """What paths until then answer, which somebody who looks again and again may remember by its key."""
        del key, until_ns
        return ask()

    def wakers(self, process: int) -> list[WakerTotals]:
        """Who ended the sleeps of a process, longest sleep first."""
        is_there = self.reader.is_recorded("raw_wakers")
        return self.reader.wakers(self.window, process=process) if is_there else []

    def culprits(self, windows: Iterable[Window], process: int) -> list[CulpritTotals]:
        """Who ran while the process waited, in parts of the window, most time first."""
        key = (tuple(windows), process)
        if key not in self._culprits:
            is_there = self.reader.is_recorded("raw_culprits")
            self._culprits[key] = self.reader.culprit_shares(Spans(key[0]), process=process) if is_there else []
        return self._culprits[key]

    @cached_property
    def waiting(self) -> dict[int, InFlight]:
        """The call that was open longest when last seen, by process."""
        if not self.reader.is_recorded("raw_in_flight"):
            return {}
        return {call.process: call for call in reversed(self.reader.in_flight(self.window))}

    def stopped_seconds(self, process: int) -> list[Window]:
        """Stretches in which the threads of a process were stopped most of the time."""
        if not self.reader.is_recorded("raw_thread_state_seconds"):
            return []
        rows = self.reader.thread_state_seconds(self.window, process=process)
        stopped = rows["state_ns"][:, CLOCK_NAMES.index("stopped")] > _STOPPED * rows["state_ns"].sum(axis=1)
        found: list[Window] = []
        for row in rows[stopped]:
            begin, end = int(row["start_ns"]), int(row["start_ns"] + row["period_ns"])
            if found and begin - found[-1].end_ns < SECOND_NS:
                found[-1] = Window(begin_ns=found[-1].begin_ns, end_ns=end)
            else:
                found.append(Window(begin_ns=begin, end_ns=end))
        return found

    def throttling(self, window: Window) -> list[Throttling]:
        """How often each control group was throttled in a part of the window."""
        return self.reader.throttling(window) if self.reader.is_recorded("raw_cgroup_throttling") else []

    def name_of_pid(self, pid: int) -> str:
        """The name of a process that was traced, seen as somebody's culprit, or on a GPU; "" where it never was."""
        named = next((one.name for one in self.processes.values() if one.pid == pid and one.name), "")
        return named or next((one.names[pid] for one in self.gpu_samples if pid in one.names), "")

    def thread_state_totals(self, window: Window) -> list[ThreadStateTotals]:
        """What the threads of each process did in a part of the window."""
        key = (window.begin_ns, window.end_ns)
        if key not in self._clocks:
            is_there = self.reader.is_recorded("raw_thread_state_seconds")
            self._clocks[key] = self.reader.thread_state_totals(window) if is_there else []
        return self._clocks[key]

    @cached_property
    def _ops_of_window(self) -> dict[int, list[OpShare]]:
        """At once: processes may come and go by the thousand, and each question reads the rows of all of them."""
        return self.reader.op_shares_by_process(self.window)

    def ops(self, windows: Iterable[Window], process: int) -> list[OpShare]:
        """The calls of a process in parts of the window."""
        key = (tuple(windows), process)
        if key[0] == (self.window,):
            return self._ops_of_window.get(process, [])
        if key not in self._ops:
            self._ops[key] = self.reader.op_shares(key[0], process=process)
        return self._ops[key]

    def events(self, window: Window, sources: Sequence[int], process: int | None = None) -> Array:
        """Recorded calls or host events of these sources, `store.arrays.CALL_DTYPE`."""
        return self.reader.call_rows(window, sources=sources, process=process)

    def thread_state_seconds(self, windows: Iterable[Window], process: int) -> Array:
        """What a process's threads did in each second that touches these time ranges: `THREAD_STATE_SECOND_DTYPE`."""
        if not self.reader.is_recorded("raw_thread_state_seconds"):
            return _NO_SECONDS
        spans = Spans(windows)
        near = [self.reader.thread_state_seconds(one, process=process) for one in spans.near(LONGEST_PERIOD_NS)]
        rows: Array = np.concatenate([_NO_SECONDS, *near])
        return rows[spans.touch(rows["start_ns"], rows["start_ns"] + rows["period_ns"])]

    def samples(self, windows: Iterable[Window], process: int) -> Array:
        """Where the threads of a process were outside traced calls, `store.arrays.SAMPLE_DTYPE`."""
        key = (tuple(windows), process)
        if key not in self._samples:
            self._samples[key] = self._read_samples(Spans(key[0]), process)
        return self._samples[key]

    def _read_samples(self, spans: Spans, process: int) -> Array:
        if not self.reader.is_recorded("raw_stack_samples"):
            return _NO_SAMPLES
        near = [self.reader.sample_rows(one, process=process) for one in spans.near(SECOND_NS)]
        rows: Array = np.concatenate([_NO_SAMPLES, *near])
        return rows[spans.hold(rows["time_ns"], rows["time_ns"] + 1)]

    @cached_property
    def thread_names(self) -> dict[int, str]:
        """The names of the threads of traced processes."""
        return {one.tid: one.name for one in self._every_thread}

    @cached_property
    def threads(self) -> dict[int, tuple[int, int]]:
        """(process, pid) of the threads of traced processes, by thread id."""
        pids = {number: one.pid for number, one in self.processes.items() if one.is_traced}
        return {one.tid: (one.process, pids[one.process]) for one in self._every_thread if one.process in pids}

    @cached_property
    def _every_thread(self) -> list[Thread]:
        return self.read_threads() if self.reader.is_recorded("raw_threads") else []

    def read_threads(self) -> list[Thread]:
        """The threads of those processes."""
        return self.reader.threads()

    @cached_property
    def waker_names(self) -> dict[int, str]:
        """The names of processes that ended sleeps of traced threads, by pid; where that is not known by thread."""
        rows = self.reader.wakers(self.window) if self.reader.is_recorded("raw_wakers") else []
        return {one.waker_pid or one.waker_tid: one.waker_name for one in rows if one.waker_name}

    def call_line(self, window: Window, process: int, source: int, op: int) -> CodeLine | None:
        """The Python line that spent most of the recorded time in one operation; None where no stack has one."""
        times = [one for one in self.reader.stack_times(window, process=process, sources=(source,)) if one.op == op]
        key = (window.begin_ns, window.end_ns, process)
        waiters = self._waiters.setdefault(key, Waiters(self.reader, window, process=process))
        placed, _ = waiters.placed(times, self.stacks)
        spent: dict[CodeLine, int] = defaultdict(int)
        for one in placed:
            line = self.own_line(one.waiter.stack_hash if one.waiter else one.time.stack_hash)
            if line:
                spent[replace(line, waiting_thread=one.waiter.thread) if one.waiter else line] += one.time.sum_ns
        return max(spent, key=lambda line: spent[line], default=None)

    def sampled_line(self, window: Window, process: int, *, states: Sequence[str] = ()) -> CodeLine | None:
        """The own line at which a process's threads were most, outside GPU calls; in these states, or in any."""
        if not self.reader.is_recorded("raw_stack_samples"):
            return None
        spent: dict[CodeLine, int] = defaultdict(int)
        for one in self.reader.samples(window, process=process):
            line = self.own_line(one.stack_hash) if not states or one.state in states else None
            if line:
                spent[line] += one.ns
        return max(spent, key=lambda line: spent[line], default=None)

    @cached_property
    def stacks(self) -> StackBook:
        """The stored stacks."""
        return StackBook(self.reader)

    def own_line(self, stack_hash: int) -> CodeLine | None:
        """The innermost line of the user's own code in a stack."""
        stack = self.stacks.of(stack_hash)
        place = stack.own if stack else None
        return CodeLine(file=place.file, line=place.line, function=place.function) if place else None

    # The machine

    def host_events(self, window: Window, source: Source) -> list[HostEvent]:
        """What of one source happened in a part of the window, or began up to a second before it; oldest first."""
        key = (window.begin_ns, window.end_ns, source)
        if key not in self._host_events:
            wider = Window(begin_ns=window.begin_ns - SECOND_NS, end_ns=window.end_ns)
            self._host_events[key] = self.reader.host_events(wider, source=source)
        return self._host_events[key]

    @cached_property
    def scheduling(self) -> dict[tuple[int, int], list[Scheduling]]:
        """How the scheduler was told to treat threads, by (pid, tid), oldest first."""
        rows = self.reader.scheduling(self.window) if self.reader.is_recorded("raw_scheduling") else []
        found: dict[tuple[int, int], list[Scheduling]] = defaultdict(list)
        for row in rows:
            found[row.pid, row.tid].append(row)
        return dict(found)

    @cached_property
    def cpu_seconds(self) -> Array:
        """How each CPU spent each second, `store.machine.CPU_SECOND_DTYPE`."""
        return self.reader.cpu_seconds(self.window)

    @cached_property
    def agent_pids(self) -> frozenset[int]:
        """The recorder itself."""
        return self.reader.agent_pids(self.window)

    def agent_cpus(self, windows: Iterable[Window]) -> float:
        """CPUs that the recorder itself used in these time ranges, on average; between two readings evenly."""
        times, used_ns = self._agent_use
        ends = [(one.begin_ns, one.end_ns) for one in windows]
        grown = sum(float(np.diff(np.interp(pair, times, used_ns))[0]) for pair in ends)
        return grown / max(sum(end - begin for begin, end in ends), 1)

    @cached_property
    def _agent_use(self) -> tuple[list[int], list[int]]:
        """Times, and what it had used of CPUs until then; in a recording that does not say so, nothing."""
        rows = self.reader.snapshots(self.window) if self.reader.is_recorded("raw_snapshots") else []
        begin_ns = max((one.started_ns for one in self.sessions), default=0)
        times, total = [min(begin_ns, rows[0].time_ns) if rows else begin_ns], [0]
        for one in rows:
            times.append(one.time_ns)
            total.append(total[-1] + (one.agent_cpu_ns or 0))
        return times, total

    @cached_property
    def gpu_samples(self) -> list[GpuUse]:
        """What the GPUs were doing, second by second."""
        return self.reader.gpu_samples(self.window) if self.reader.is_recorded("raw_gpu_samples") else []

    @cached_property
    def process_gpus(self) -> dict[tuple[int, int], str]:
        """The GPU (uuid) behind an ordinal of a process, by (process, ordinal); ordinal -1: behind any that it uses."""
        return self.reader.process_gpus() if self.reader.is_recorded("raw_process_gpus") else {}

    @cached_property
    def gpu_slices(self) -> tuple[set[str], dict[tuple[int, str], str]]:
        """GPUs (uuid) that are divided into MIG slices, and by (process, uuid) the slice that it is in."""
        return self.reader.gpu_slices() if self.reader.is_recorded("raw_process_gpus") else (set(), {})

    @cached_property
    def gpus_of_pids(self) -> dict[int, set[str]]:
        """The GPUs (uuid) on which the driver saw memory of a pid."""
        found: dict[int, set[str]] = defaultdict(set)
        for one in self.gpu_samples:
            for pid, _ in one.processes:
                found[pid].add(one.uuid)
        return found
