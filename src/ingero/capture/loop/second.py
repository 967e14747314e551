"""Reads the kernel's sums of one second, writes them as rows, and hands them to the views."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingero.attach.kernel_side import KernelSide
from ingero.capture.foreign.own_processes import OwnProcesses
from ingero.capture.host.snapshots import AgentUsage
from ingero.capture.loop.clocks import WallClock
from ingero.capture.loop.drops import MEANINGS, DropReader
from ingero.capture.loop.period import Period
from ingero.capture.loop.rings import Backlog
from ingero.capture.processes.cgroup_rows import CgroupRows
from ingero.capture.processes.traced_processes import TracedProcess, TracedProcesses
from ingero.capture.records.open_calls import AwakeTime, InFlightSince
from ingero.capture.records.rows import Sink
from ingero.capture.sums.call_sites import CallSiteRows
from ingero.capture.sums.cells import COPY_SUMS, CellGrowth, CellReader
from ingero.capture.sums.copies import copy_rows
from ingero.capture.sums.culprits import CulpritReader, CulpritTime
from ingero.capture.sums.host_sums import HostSum, HostSumReader
from ingero.capture.sums.interval_sums import IntervalSums
from ingero.capture.sums.launches import LaunchGrowth, LaunchReader
from ingero.capture.sums.major_faults import MajorFaults
from ingero.capture.sums.memory_rows import MemoryRows
from ingero.capture.sums.quota import QuotaSeconds
from ingero.decode.nccl import SEQUENCE_BITS, SEQUENCE_MASK
from ingero.discover import kernel_clock
from ingero.discover.gpus import Gpu, GpuSample
from ingero.discover.kernel import throttles_tasks
from ingero.discover.system import SystemSample
from ingero.foreign_text import decoded
from ingero.ops import BY_ID, Source
from ingero.store.vocabulary import STATES, CulpritKind
from ingero.store.writing import tables
from ingero.store.writing.tables import Row

Array = np.ndarray[Any, np.dtype[Any]]

_TRIES = 3  # with thousands of threads ending a second there is always one
_FEW_THREADS = 2048  # names of ended threads that are kept for the records still to come
IN_FLIGHT_NS = 1_000_000_000  # a call open for longer is shown while it is open


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondOfCounts:
    """The counts of one second.

    states_ns: summed over the threads of traced processes, in the order of STATES; switches: their context switches,
    involuntary_switches: likewise. system, agent: None in the last second of a recording.
    """

    period: Period
    traced_processes: int
    threads: int
    cells: list[CellGrowth]
    states_ns: Array
    culprit_times: list[CulpritTime]
    drops: dict[str, int]
    in_flight: int
    switches: int = 0
    involuntary_switches: int = 0
    halted: int = 0  # processes that make no calls any more and wait for what may never come
    host: list[HostSum] = field(default_factory=list)
    records: int = 0
    intervals: IntervalSums = field(default_factory=IntervalSums)
    system: SystemSample | None = None
    agent: AgentUsage | None = None
    gpus: tuple[tuple[Gpu, GpuSample], ...] = ()
    overhead_ratio: float = 0.0  # of the wall time of the busiest traced thread
    agent_cpu_ratio: float = 0.0  # of a core
    level: int = 0  # 0: everything is traced
    not_traced: tuple[str, ...] = ()  # codes of `given_up`

    @property
    def time_ns(self) -> int:
        """The end of the second, unix ns."""
        return self.period.end_ns

    @property
    def elapsed_s(self) -> float:
        """The length of the second, s."""
        return self.period.elapsed_s

    @property
    def calls(self) -> int:
        """Number of outermost calls that returned."""
        return sum(int(cell.growth["count"]) for cell in self.cells)


class SecondReader:
    """Reads all sums that are read once a second."""

    def __init__(
        self,
        kernel: KernelSide,
        sink: Sink,
        clock: WallClock,
        traced_processes: TracedProcesses,
        cgroups: CgroupRows,
        own: OwnProcesses,
    ) -> None:
        self._cgroups = cgroups
        self._kernel, self._sink, self._clock, self._traced_processes = kernel, sink, clock, traced_processes
        layouts, maps = kernel.layouts, kernel.maps
        self.cells = CellReader(maps["cell_keys"], maps["cells"], layouts.dtype("cell"))
        self._launches = LaunchReader(
            maps["kernels"], maps["kernel_handles"], layouts.dtype("kernel_cell"), layouts.dtype("kernel_handle")
        )
        self.memory = MemoryRows(kernel, sink, traced_processes)
        self._drops = DropReader(maps["drops"], layouts)
        self.culprits = CulpritReader(maps["culprits"], layouts, own)
        self._dump = layouts.dtype("thread_dump")
        self.threads: Array = np.zeros(0, self._dump)  # as last read
        self._processes: Array = np.frombuffer(
            maps["processes"].memory(), layouts.dtype("process"), maps["processes"].max_entries
        )
        self._host = HostSumReader(kernel.maps, layouts, self._processes)
        self._major_faults = MajorFaults(self._processes, kernel_clock.boottime_ns())
        self._open_since, self._awake_since = InFlightSince(clock), AwakeTime()
        self.sites = CallSiteRows(sink, traced_processes)
        self._clocks_before: dict[int, Array] = {}
        self._quota = QuotaSeconds(throttles_tasks=throttles_tasks())
        self._threads_seen: dict[tuple[int, int], str] = {}
        self.thread_names: dict[int, str] = {}
        self.drops_total: dict[str, int] = defaultdict(int)
        # gets (traced process, function, generation) of launched kernels, and since when (unix ns)
        self.on_launched: Callable[[list[tuple[TracedProcess, int, int]], int], None] = lambda _launched, _since_ns: (
            None
        )
        # of a thread's open call; given the process number and its `struct thread_dump`
        self.stack_of_in_flight_call: Callable[[int, Any], int] = lambda _number, _thread: 0
        self.backlog: Callable[[], Backlog] = Backlog  # records that are not yet handed over
        self.on_forget: list[Callable[[int], None]] = []  # called for each slot that is freed
        # of other threads that count dropped data: growth by counter since the last call
        self.more_drops: list[Callable[[], Mapping[str, int]]] = []

    def read(self, period: Period) -> SecondOfCounts:
        """Reads all sums at the end of a period; rows go to the sink."""
        now_ns, elapsed_s = period.end_ns, period.elapsed_s
        threads, ended = self._read_thread_states()
        cells = self.cells.read(elapsed_s)
        self._write_op_stats(cells, period)
        copies = copy_rows(
            self._sink.session,
            ((traced_process.number, cell) for traced_process, cell in self._known(cells)),
            period.columns(),
        )
        self._sink.append(tables.COPIES, copies)
        self.sites.collect(cells, period)
        self._write_launches(period)
        faults = self._major_faults.read(threads)
        self.memory.write(period)
        growth = self._write_clocks(threads, ended, faults, period)
        self._write_threads(threads, now_ns)
        culprit_times = self._quota.settle(
            self.culprits.read(), {slot: grown[: len(STATES)] for slot, grown in growth.items()}
        )
        self._write_culprit_times(culprit_times, period)
        drops = self._drops.read()
        if self._quota.unknown_ns:
            drops["culprit_unknown_ns"] = drops.get("culprit_unknown_ns", 0) + self._quota.unknown_ns
        clocks = sum(growth.values(), start=np.zeros(len(STATES) + 2, np.int64))
        second = SecondOfCounts(
            period=period,
            traced_processes=len(self._traced_processes),
            threads=len(threads),
            cells=cells,
            states_ns=clocks[: len(STATES)],
            switches=int(clocks[-2]),
            involuntary_switches=int(clocks[-1]),
            host=self._host.read(sum(faults.values())),
            culprit_times=culprit_times,
            drops=self.count_drops(drops, period),
            in_flight=self._write_in_flight(threads, now_ns),
        )
        for slot in self._traced_processes.recycle(set(threads["process_slot"].tolist()), self.backlog):
            self.forget(slot)
        return second

    def count_drops(self, growth: dict[str, int], period: Period) -> dict[str, int]:
        """Adds up and stores dropped data by counter name; returns it."""
        rows = tables.DROPS.rows(
            len(growth),
            session=self._sink.session,
            **period.columns(),
            counter=list(growth),
            reason=[MEANINGS.get(name, "") for name in growth],
            count=list(growth.values()),
        )
        self._sink.append(tables.DROPS, rows)
        for name, count in growth.items():
            self.drops_total[name] += count
        return growth

    def other_threads_drops(self) -> dict[str, int]:
        """What other threads have dropped since the last call, by counter."""
        return {name: count for more in self.more_drops for name, count in more().items() if count}

    def forget(self, slot: int) -> None:
        """Clears the kernel's sums of an ended process and gives its slot back."""
        self.sites.forget(slot)
        self.cells.forget(slot)
        self._launches.forget(slot)
        self.memory.forget(slot)
        self.culprits.forget(slot)
        self._clocks_before.pop(slot, None)
        self._host.forget(slot)
        self._major_faults.forget(slot)
        for forget in self.on_forget:
            forget(slot)
        # the next process in this slot may have a thread of the same number
        self._threads_seen = {key: raw for key, raw in self._threads_seen.items() if key[0] != slot}
        self._kernel.recycle(slot)

    def _known(self, cells: Iterable[CellGrowth]) -> list[tuple[TracedProcess, CellGrowth]]:
        pairs = ((self._traced_processes.at(cell.slot), cell) for cell in cells)
        return [
            (traced_process, cell) for traced_process, cell in pairs if traced_process is not None and cell.op in BY_ID
        ]

    def _write_op_stats(self, cells: list[CellGrowth], period: Period) -> None:
        """Cells folded to the library of their caller: one row per (process, operation, library)."""
        folded: dict[tuple[int, int, str], list[CellGrowth]] = defaultdict(list)
        for traced_process, cell in self._known(cells):
            library = traced_process.callers.place(cell.caller).library
            folded[traced_process.number, cell.op, library].append(cell)
        if not folded:
            return
        sums = [_sum_cells(group) for group in folded.values()]
        clocks = np.stack([one["state_ns"] for one in sums])
        rows = tables.OP_STATS.rows(
            len(folded),
            session=self._sink.session,
            **period.columns(),
            process=[number for number, _, _ in folded],
            source=[int(BY_ID[op].source) for _, op, _ in folded],
            op=[BY_ID[op].code for _, op, _ in folded],
            library=[self._sink.intern(library) if library else 0 for _, _, library in folded],
            count=[int(one["count"]) for one in sums],
            errors=[int(one["errors"]) for one in sums],
            nested=[int(one["nested"]) for one in sums],
            untimed=[sum(cell.untimed for cell in group) for group in folded.values()],
            recorded=[int(one["recorded"]) for one in sums],
            sum_ns=[int(one["sum_ns"]) for one in sums],
            max_ns=[max(cell.max_ns for cell in group) for group in folded.values()],
            bytes=[int(one["size_bytes"]) for one in sums],
            **{f"{name}_ns": clocks[:, index] for index, name in enumerate(STATES)},
        )
        self._sink.append(tables.OP_STATS, rows)

    def _write_launches(self, period: Period) -> None:
        """Cells folded to the library of their caller: one row per (process, kernel, library)."""
        pairs = [(self._traced_processes.at(launches.slot), launches) for launches in self._launches.read()]
        known: list[tuple[TracedProcess, LaunchGrowth]] = [
            (traced_process, launches) for traced_process, launches in pairs if traced_process
        ]
        if not known:
            return
        counts: dict[tuple[int, int, int, str], int] = defaultdict(int)
        for traced_process, launches in known:
            library = traced_process.callers.place(launches.caller).library
            counts[traced_process.number, launches.function, launches.generation, library] += launches.count
        processes, functions, generations, libraries = (list(column) for column in zip(*counts, strict=True))
        rows = tables.KERNEL_LAUNCHES.rows(
            len(counts),
            session=self._sink.session,
            **period.columns(),
            process=processes,
            function=functions,
            generation=generations,
            library=[self._sink.intern(name) if name else 0 for name in libraries],
            count=list(counts.values()),
        )
        self._sink.append(tables.KERNEL_LAUNCHES, rows)
        self.on_launched(
            [(traced_process, launches.function, launches.generation) for traced_process, launches in known],
            period.start_ns,
        )

    def _read_thread_states(self) -> tuple[Array, Array]:
        """Thread-state times of living threads (`struct thread_dump`), and the sums of ended threads, by slot.

        The sums come first, so that no thread is in both; one that ends in between is in neither, and read once more.
        """
        for _ in range(_TRIES):
            ended = self._processes.copy()
            self.threads = np.frombuffer(self._kernel.read_threads(), self._dump)
            if np.array_equal(self._processes["gone_threads"], ended["gone_threads"]):
                break
        return self.threads, ended

    def _write_clocks(self, threads: Array, ended: Array, faults: dict[int, int], period: Period) -> dict[int, Array]:
        """Writes the thread-state time of each process, of ended threads too; returns it with context switches.

        ended: `struct process` by slot. Returns growth by slot.
        """
        grown: dict[int, Array] = {}
        rows: list[Row] = []
        for traced_process in self._traced_processes:
            mine = threads[threads["process_slot"] == traced_process.slot]
            # a process without threads has no thread in both: then its current sums
            gone = ended[traced_process.slot] if len(mine) else self._processes[traced_process.slot]
            clocks = mine["state_ns"].sum(axis=0, dtype=np.int64) + gone["gone_state_ns"].astype(np.int64)
            switches = int(mine["switches"].sum(dtype=np.int64)) + int(gone["gone_switches"])
            involuntary_switches = int(mine["preemptions"].sum(dtype=np.int64)) + int(gone["gone_preemptions"])
            now = np.append(clocks, [switches, involuntary_switches])
            before = self._clocks_before.get(traced_process.slot, np.zeros_like(now))
            growth = np.maximum(now - before, 0)
            self._clocks_before[traced_process.slot] = np.maximum(
                now, before
            )  # who was in neither comes back, and is not new
            grown[traced_process.slot] = growth
            if growth.any() or faults.get(traced_process.slot):
                rows += tables.THREAD_STATE_SECONDS.rows(
                    1,
                    session=self._sink.session,
                    **period.columns(),
                    process=traced_process.number,
                    threads=len(mine),
                    switches=int(growth[-2]),
                    involuntary_switches=int(growth[-1]),
                    major_faults=faults.get(traced_process.slot, 0),
                    **{f"{name}_ns": int(growth[index]) for index, name in enumerate(STATES)},
                )
        self._sink.append(tables.THREAD_STATE_SECONDS, rows)
        return grown

    def _write_threads(self, threads: Array, now_ns: int) -> None:
        """Writes names of threads, when first seen or changed."""
        rows: list[Row] = []
        for slot, tid, raw, created in zip(
            threads["process_slot"].tolist(),
            threads["tid"].tolist(),
            threads["comm"].tolist(),
            threads["created_ns"].tolist(),
            strict=True,
        ):
            if self._threads_seen.get((slot, tid)) == raw:
                continue
            self._threads_seen[slot, tid] = raw
            name = self.thread_names[tid] = decoded(raw)
            traced_process = self._traced_processes.at(slot)
            if traced_process:
                seen_ns = self._clock.unix_ns_of(created)
                rows += tables.THREADS.rows(
                    1,
                    process=traced_process.number,
                    tid=tid,
                    start_ns=seen_ns,
                    name=name,
                    first_seen_ns=seen_ns,
                    last_seen_ns=now_ns,
                )
        self._sink.append(tables.THREADS, rows)
        # `forget` takes the threads of an ended process out of the one, while records still ask for their names
        if max(len(self._threads_seen), len(self.thread_names)) > 2 * len(threads) + _FEW_THREADS:
            self._forget_ended_threads(threads)

    def _forget_ended_threads(self, threads: Array) -> None:
        slots, tids = threads["process_slot"].tolist(), threads["tid"].tolist()
        living, names = set(zip(slots, tids, strict=True)), set(tids)
        self._threads_seen = {key: raw for key, raw in self._threads_seen.items() if key in living}
        self.thread_names = {tid: name for tid, name in self.thread_names.items() if tid in names}

    def _write_culprit_times(self, culprit_times: list[CulpritTime], period: Period) -> None:
        known = [
            (traced_process, culprit_time)
            for culprit_time in culprit_times
            if (traced_process := self._traced_processes.at(culprit_time.slot))
        ]
        culprits = [culprit_time for _, culprit_time in known]
        cgroups = np.asarray([one.culprit_cgroup_id for one in culprits], np.uint64)
        rows = tables.CULPRITS.rows(
            len(known),
            session=self._sink.session,
            **period.columns(),
            process=[traced_process.number for traced_process, _ in known],
            kind=[int(CulpritKind.YIELDED if one.is_yielded else CulpritKind.RUNQ) for one in culprits],
            culprit_pid=[one.culprit_pid for one in culprits],
            culprit_name=[self._sink.intern(one.culprit_name) for one in culprits],
            culprit_cgroup_id=self._cgroups.keys(cgroups),
            ns=[one.ns for one in culprits],
            switches=[one.switches for one in culprits],
        )
        self._sink.append(tables.CULPRITS, rows)

    def _write_in_flight(self, threads: Array, now_ns: int) -> int:
        """Writes calls that have been in flight for long; returns how many."""
        waited = threads["now_ns"].astype(np.int64) - threads["call_start_ns"].astype(np.int64)
        hung = threads[(threads["call_start_ns"] != 0) & (waited > IN_FLIGHT_NS)]
        calls = list(zip(hung["tid"].tolist(), hung["call_start_ns"].tolist(), strict=True))
        rows: list[Row] = []
        awake = self._awake_since.of(calls, hung["state_ns"])
        for thread, since_ns, awake_ns in zip(hung, self._open_since.of(calls), awake, strict=True):
            traced_process, op = (
                self._traced_processes.at(int(thread["process_slot"])),
                BY_ID.get(int(thread["call_op"])),
            )
            if traced_process and op:
                rows += tables.IN_FLIGHT.rows(
                    1,
                    session=self._sink.session,
                    time_ns=now_ns,
                    process=traced_process.number,
                    pid=int(thread["pid"]),
                    tid=int(thread["tid"]),
                    source=int(op.source),
                    op=op.code,
                    since_ns=since_ns,
                    awake_ns=awake_ns,
                    caller=thread["call_caller"].astype(np.int64),
                    handle=thread["call_handle"].astype(np.int64),
                    communicator=int(thread["call_function"]) >> SEQUENCE_BITS if op.source is Source.NCCL else 0,
                    sequence=int(thread["call_function"]) & SEQUENCE_MASK if op.source is Source.NCCL else 0,
                    stack_hash=self.stack_of_in_flight_call(traced_process.number, thread),
                )
        self._sink.append(tables.IN_FLIGHT, rows)
        return len(rows)


def _sum_cells(group: list[CellGrowth]) -> Any:
    """The sums of several cells, as one cell."""
    if len(group) == 1:
        return group[0].growth
    total = group[0].growth.copy()
    for name in ("count", "errors", "nested", "recorded", "sum_ns", "size_bytes", "state_ns", *COPY_SUMS):
        total[name] = sum(cell.growth[name] for cell in group)
    return total
