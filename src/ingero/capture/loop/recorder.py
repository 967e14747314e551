"""The live loop: records become rows as they come, everything else is read once a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ingero.attach.kernel_side import KernelSide
from ingero.capture.budget.calibration import calibrate
from ingero.capture.budget.overhead_limiter import OverheadLimiter
from ingero.capture.budget.rehearsal import NO_REHEARSAL, Rehearsal
from ingero.capture.foreign.own_processes import OwnProcesses
from ingero.capture.foreign.readers import ForeignReaders
from ingero.capture.host.gpu_samples import GpuSamples, Listed
from ingero.capture.host.gpus import GpuRows, UnseenCalls
from ingero.capture.host.numa import write_numa_nodes
from ingero.capture.host.scheduling import SchedulingRows
from ingero.capture.host.snapshots import SnapshotRows
from ingero.capture.libraries.libraries import LibraryProbes, ProbeResult
from ingero.capture.loop.clocks import PAIR_PERIOD_NS, WallClock, read_pair
from ingero.capture.loop.coverage_spans import CoverageSpans
from ingero.capture.loop.drainer import Drainer
from ingero.capture.loop.period import period_until
from ingero.capture.loop.salvage import Salvage
from ingero.capture.loop.second import SecondOfCounts, SecondReader
from ingero.capture.loop.watchdog import Watchdog
from ingero.capture.processes.cgroup_rows import CgroupRows
from ingero.capture.processes.process_discovery import ProcessChange, ProcessDiscovery, ProcessSelection
from ingero.capture.processes.process_rows import ProcessRows
from ingero.capture.processes.traced_processes import TracedProcess, TracedProcesses
from ingero.capture.records.communicators import CommunicatorRows
from ingero.capture.records.recorded_calls import RecordedCalls
from ingero.capture.records.rows import RowMaker, Sink
from ingero.capture.stacks.halted_processes import HaltDetector
from ingero.capture.stacks.kernel_names import KernelNames
from ingero.capture.stacks.stack_samples import StackSamples
from ingero.capture.stacks.stacks import Stacks
from ingero.capture.steps.mark_rows import MarkRows
from ingero.capture.steps.step_rows import StepRows
from ingero.capture.steps.steps import StepFinder
from ingero.capture.sums.host_sums import lifecycle_sums
from ingero.capture.sums.interval_sums import IntervalSums
from ingero.capture.sums.wakers import WakerRows
from ingero.discover import kernel_clock
from ingero.discover.gpus import present_gpus
from ingero.discover.interpreters import UnreadableInterpreter
from ingero.discover.libraries import LibraryCopy, UnreadableLibrary
from ingero.discover.numa import numa_nodes
from ingero.discover.processes import read_thread_name
from ingero.discover.ranks import Membership
from ingero.events import THREAD_STATES
from ingero.ops import Library
from ingero.sandbox.nursery import Nursery
from ingero.step_counts import How
from ingero.store.records import PYTHON_LINES
from ingero.store.writing import tables
from ingero.store.writing.tables import Row
from ingero.units import SECOND_NS

logger = logging.getLogger(__name__)

_TICK_NS = 1_000_000_000
_HURRIED_TICK_NS = 500_000_000
_IDLE_TICKS = 5  # readings without a traced process before the programs are detached; attaching again takes 50 ms
_MANY_ENDED_TICK_NS = 50_000_000  # long enough for the last switch of a thread that has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderOptions:
    """Options of a recording. pids: processes to trace with their children; empty: all that use a traced library.

    uid: of these only those of this real user id; None: everybody's. is_traced: see ProcessSelection.
    launches_at_driver_only, libraries, given_files: see LibraryProbes.
    deadband_percent, heartbeat_s: see SnapshotRows.
    max_overhead_ratio: of the busiest traced thread's time; max_cpu_ratio: of one core; 0: no limit.
    rehearsal: makes the overhead limiter act as on a slower machine.
    shown_calls: so many recorded calls a second are kept to be shown, see `Recorder.recorded_calls`.
    """

    pids: Sequence[int] = ()
    uid: int | None = None
    launches_at_driver_only: bool = False
    with_stacks: bool = False
    libraries: frozenset[Library] = frozenset(Library)
    given_files: Sequence[Path] = ()
    deadband_percent: float = 0
    heartbeat_s: float = 0
    max_overhead_ratio: float = 0
    max_cpu_ratio: float = 0
    shown_calls: int = 0
    rehearsal: Rehearsal = NO_REHEARSAL
    is_traced: Callable[[int], bool] | None = None


class Recorder:
    """One recording from attach to detach. Use as a context manager; `run` ends when `should_stop` says so.

    nursery: where the processes come from that read foreign files; None: one of its own, which shares whatever is open
    and mapped by now.
    """

    def __init__(
        self, kernel: KernelSide, sink: Sink, options: RecorderOptions, nursery: Nursery | None = None
    ) -> None:
        self._kernel, self._sink, self.clock = kernel, sink, WallClock()
        self._resources = ExitStack()
        self._add_clock_pair()
        boot_unix_ns = time.time_ns() - kernel_clock.boottime_ns()
        selection = ProcessSelection(pids=options.pids, uid=options.uid, is_traced=options.is_traced)
        self._foreign = foreign = self._resources.enter_context(ForeignReaders(nursery))
        self.traced_processes = TracedProcesses(kernel, boot_unix_ns, sink.process_id, foreign.memory_files)
        self.libraries = LibraryProbes(
            kernel,
            launches_at_driver_only=options.launches_at_driver_only,
            libraries=options.libraries,
            given_files=options.given_files,
            reader=foreign.libraries,
        )
        self.discovery = ProcessDiscovery(
            kernel, self.traced_processes, selection, self, self.libraries, foreign.memory_files, foreign.disk
        )
        self._resources.callback(self.discovery.close)
        self.probes: list[ProbeResult] = []
        self._cgroups = CgroupRows(sink, files=foreign.root_files, memory=foreign.memory_files)
        self.seconds = SecondReader(
            kernel, sink, self.clock, self.traced_processes, self._cgroups, own := OwnProcesses(lambda: foreign.pids)
        )
        self._gpus = gpus = GpuRows(sink, present_gpus(), foreign.root_files)
        self._processes = ProcessRows(sink, self._cgroups, gpus, foreign.root_files, foreign.memory_files)
        self._unseen = UnseenCalls(kernel)
        self._snapshots = SnapshotRows(
            sink,
            lambda: self.clock.unix_ns_of(kernel_clock.monotonic_ns()),
            options.deadband_percent,
            options.heartbeat_s,
        )
        self._scheduling = SchedulingRows(sink)
        self._gpu_samples = GpuSamples(sink, self.clock.unix_ns_of, listed=self._note_gpus)
        self._resources.callback(self._gpu_samples.stop)
        coverage_spans = CoverageSpans()
        self._rows = RowMaker(
            sink,
            self.clock,
            self.traced_processes,
            name_of_pid=self._name_of_pid,
            name_of_thread=self._name_of_thread,
            cgroup_keys=self._cgroups.keys,
            default_gpu=gpus.default_gpu,
            is_changed=coverage_spans.changed.touch,
            owners=own.owners,
        )
        step_rows = StepRows(
            sink,
            self.clock,
            numbers_of=self._rows.process_numbers,
            gpus_of=self._rows.gpus,
            coverage_spans=coverage_spans,
            written=self._on_step_rows,
        )
        self._steps = StepFinder(kernel, self.traced_processes, step_rows)
        marks = MarkRows(sink, self.clock, numbers_of=self._rows.process_numbers, gpus_of=self._rows.gpus)
        self._communicators = CommunicatorRows(kernel, sink, self.clock, self.traced_processes, self._note_members)
        self._halts = self._resources.enter_context(
            HaltDetector(sink, self.clock, self.traced_processes, foreign.waits)
        )
        self.seconds.on_forget += [
            self._halts.forget,
            self._communicators.forget,
            self._rows.forget,
            self._steps.forget,
            marks.forget,
        ]
        self.stacks = Stacks(
            kernel,
            lambda rows: sink.append(tables.STACKS, rows),
            keeps=bool(options.shown_calls),
            reader=foreign.native,
            without_lines=self._note_without_lines,
        )
        self.recorded_calls = RecordedCalls(options.shown_calls, self.clock, self.stacks.known)
        self.seconds.stack_of_in_flight_call = self.stacks.hung.stack_of
        self.has_stacks = options.with_stacks
        self._samples = StackSamples(
            kernel, sink, self.clock, self.traced_processes, self.stacks, halted=lambda: self._halts.halted
        )
        if options.with_stacks:
            self._resources.enter_context(self.stacks.worker)
            self._resources.enter_context(self._samples)
        self._kernel_names = KernelNames(lambda rows: sink.append(tables.KERNELS, rows), self.clock, foreign.native)
        self._resources.enter_context(self._kernel_names.worker)
        self.seconds.on_launched = self._kernel_names.want
        consumers = {
            "lifecycle": self._on_lifecycle,
            "calls": self._on_calls,
            "sync_intervals": self._on_sync_intervals,
            "steps": self._steps.steps,
            "sequence": self._steps.calls,
            "marks": marks.add,
            "offcpu": self._on_offcpu,
            "host": self._rows.host_events,
            "nccl": self._communicators.add,
            "python_code": lambda batch: self.stacks.add_code(batch, self._rows.number),
            "python_stacks": lambda batch: self.stacks.add_python(batch, self._rows.number),
            "native_stacks": lambda batch: self.stacks.add_native(batch, self._rows.number),
            "samples": lambda batch: self._samples.add_running(
                batch, self._rows.process_numbers(batch["process_slot"])
            ),
            "kernel_names": lambda batch: self._kernel_names.add(
                batch, self._rows.process_numbers(batch["process_slot"])
            ),
        }
        self._wakers = WakerRows(sink, self.traced_processes, self._name_of_thread)
        self._salvage, self._watchdog = Salvage(), self._resources.enter_context(Watchdog())
        self._drainer = self._resources.enter_context(Drainer(kernel, consumers, self._salvage))
        self.seconds.backlog = self._drainer.backlog
        self.overhead_limiter = OverheadLimiter(
            kernel,
            sink,
            self.seconds,
            self._drainer,
            coverage_spans,
            max_overhead_ratio=options.max_overhead_ratio,
            max_cpu_ratio=options.max_cpu_ratio,
            with_stacks=options.with_stacks,
            rehearsal=options.rehearsal,
        )
        self.probe_ns = 0  # the part of a call's duration that is the probe itself
        self._idle_ticks = self._unreadable = self._records = 0
        self._read_ns = kernel_clock.monotonic_ns()  # when sums were last read
        self._intervals = IntervalSums()  # of a second, which may last long where the machine is: no rows are kept
        self._sink_drops: dict[tuple[str, str], int] = {}

    def start(self) -> None:
        """Attaches clocks and host events, finds the processes to trace, probes their libraries."""
        self._gpu_samples.start()
        write_numa_nodes(self._sink, numa_nodes(present_gpus()))
        self._kernel.start_clocks()
        with self._drainer.draining_during(self._kernel.start):  # the host events take longest to load
            self.probe_ns = calibrate(self._kernel, self._drainer.rings["calls"], self.seconds.forget)
            self.overhead_limiter.start()
            self.discovery.begin(self._drainer.drain)
            self._drainer.empty_buffers()
        if not any(self.traced_processes):
            self._kernel.pause(keep_clocks=self.discovery.is_open)

    def run(
        self,
        *,
        should_stop: Callable[[], bool],
        on_second: Callable[[SecondOfCounts], None],
        is_hurried: Callable[[], bool] = lambda: False,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Records until `should_stop`; `on_second` gets each second after it is stored.

        is_over: the same as far as it is known at any moment, in any thread: who does not answer is not waited for.
        is_hurried: whether somebody waits for this second, which then ends after half of it.
        """
        self._foreign.end_when(is_over)
        last_ns = self._read_ns = kernel_clock.monotonic_ns()
        while not should_stop():
            self._watchdog.beat()
            self._drainer.wait(last_ns + self._tick_ns(is_hurried()))
            self.discovery.catch_up()
            self._watch_host()
            self._samples.write_blocked()
            now_ns = kernel_clock.monotonic_ns()
            if now_ns - last_ns >= self._tick_ns(is_hurried()) or self.overhead_limiter.ends_second():
                on_second(self._tick())
                last_ns = now_ns
        self._watchdog.rest()
        on_second(self._finish())

    def _tick_ns(self, is_hurried: bool) -> int:
        if self.traced_processes.has_many_ended:
            return _MANY_ENDED_TICK_NS
        return _HURRIED_TICK_NS if is_hurried else _TICK_NS

    def _tick(self) -> SecondOfCounts:
        self._salvage.part("process scan", self.discovery.tick)
        if kernel_clock.monotonic_ns() - self.clock.last_pair_mono_ns >= PAIR_PERIOD_NS:
            self._add_clock_pair()
        second = self._read_second()
        self.overhead_limiter.act()
        self._salvage.part("cgroups", self._cgroups.tick)
        system, agent = self._snapshots.write(second.period, self._cgroups.cpu_stats)
        self._rest()
        self._foreign.rest()
        return replace(second, system=system, agent=agent, gpus=self._gpu_samples.latest)

    def _watch_host(self) -> None:
        """Attaches host events: they take 0.15 s to load, so newly traced processes do not wait for them."""
        if not self._kernel.is_running and any(self.traced_processes):
            self._kernel.start()

    def _rest(self) -> None:
        """Detaches all programs from the scheduler while no process is traced."""
        self._idle_ticks = 0 if any(self.traced_processes) else self._idle_ticks + 1
        if self._idle_ticks == _IDLE_TICKS:
            self._kernel.pause(keep_clocks=self.discovery.is_open)

    def _finish(self) -> SecondOfCounts:
        """Stops in the order that keeps counts exact: admit no more processes, detach, read a last time."""
        self.discovery.end(self._drainer.drain)
        with self._drainer.draining_during(self._kernel.detach_calls):  # it takes long enough to fill the buffers
            self._drainer.empty_buffers()
        self._drainer.drain_all()
        self._add_clock_pair()
        self._samples.write_blocked()
        second = self._read_second()
        self._cgroups.seek(is_last=True)
        self._drainer.drain_all()  # off-CPU intervals that the last reading has emptied
        self.seconds.sites.flush()
        for traced_process in self.traced_processes:
            if traced_process.exit_ns is None:
                self._processes.write(traced_process, second.time_ns)
        # each may be in what does not answer, or have much to do: they end while the rows are written, and all at once
        for worker in (self._kernel_names.worker, self._samples, self.stacks.worker, self._halts.worker):
            worker.end()
        return second

    def _read_second(self) -> SecondOfCounts:
        # Whoever reads a second's sums takes its records for complete: a thread without an interval would seem to have
        # run, and a sync interval that comes after them is not judged while tracing goes on.
        self._drainer.empty_buffers()
        self._drainer.drain_backlog()
        now_ns = kernel_clock.monotonic_ns()
        period = period_until(self.clock.now_ns(), max(now_ns - self._read_ns, 1))
        self._read_ns = now_ns
        self._salvage.part("wakers", lambda: self._wakers.write(period))
        self._salvage.part("communicators", self._communicators.write)
        self._salvage.part(
            "processes", lambda: self._processes.look_again(list(self.traced_processes), self.clock.now_ns())
        )
        second = self.seconds.read(period)
        self._salvage.part("steps", lambda: self._steps.second(second.cells))
        self._count_own_drops(second)
        threads = self.seconds.threads
        self._salvage.part(
            "scheduling",
            lambda: self._scheduling.write(second.time_ns, self.traced_processes, threads, second.culprit_times),
        )
        halted: list[int] = []
        self._salvage.part("halts", lambda: halted.append(self._halts.second(threads)))
        records, self._records = self._records, 0
        intervals, self._intervals = self._intervals, IntervalSums()
        host = [*second.host, *lifecycle_sums(self._rows.take_lifecycle())]
        own = self.overhead_limiter.observe(second)
        return replace(
            second,
            records=records,
            halted=sum(halted),
            intervals=intervals,
            host=host,
            overhead_ratio=own.overhead.ratio,
            agent_cpu_ratio=own.agent_cpu_ratio,
            level=own.level,
            not_traced=own.not_traced,
        )

    def _count_own_drops(self, second: SecondOfCounts) -> None:
        """Counts data dropped by the agent: rows not written, processes without a slot, unreadable libraries."""
        drops = self._sink.drops()
        growth = {
            f"rows_lost_{table}_{reason}".replace(" ", "_"): count - self._sink_drops.get((table, reason), 0)
            for (table, reason), count in drops.items()
        }
        self._sink_drops = drops
        for name, count in growth.items():
            if count:  # not handed to the sink, which stores its own dropped data with the rows that it could take
                second.drops[name] = count
                self.seconds.drops_total[name] += count
        own = self.stacks.worker.drops() | self._kernel_names.worker.drops()
        own |= self._halts.worker.drops()
        own |= self._salvage.drops() | self._watchdog.drops() | self._foreign.drops()
        own["gpu_samples_missed"] = self._gpu_samples.write()
        own["process_slots_full"] = self.traced_processes.take_newly_refused()
        own["library_unreadable"] = len(self.discovery.unreadable) - self._unreadable
        self._unreadable = len(self.discovery.unreadable)
        own |= self.seconds.other_threads_drops()
        grown = {name: count for name, count in own.items() if count}
        if grown:
            self.seconds.count_drops(grown, second.period)
            for name, count in grown.items():
                second.drops[name] = second.drops.get(name, 0) + count

    def count_late_drops(self) -> None:
        """Stores what other threads have dropped since the last second was read."""
        if grown := self.seconds.other_threads_drops():
            self.seconds.count_drops(grown, period_until(self.clock.now_ns(), SECOND_NS))

    def _note_members(self, members: Mapping[int, Sequence[Membership]]) -> None:
        """Notes the ranks of traced processes in their communicators."""
        by_number = {traced_process.number: traced_process for traced_process in self.traced_processes}
        self._processes.note_communicators(members, by_number, self.clock.now_ns())

    def _note_gpus(self, listed: Listed) -> None:
        """Notes on which GPUs the driver lists traced processes."""
        traced_processes = ((self.traced_processes.of_pid(pid), slices) for pid, slices in listed.items())
        self._gpus.seen(
            {traced_process.number: slices for traced_process, slices in traced_processes if traced_process}
        )

    def process_changed(
        self,
        traced_process: TracedProcess,
        change: ProcessChange,
        seen_ns: int | None = None,
        parent: TracedProcess | None = None,
    ) -> None:
        """Writes the row of a traced process that was found, executed another program, or ended."""
        if change is ProcessChange.FORKED and parent:
            self._processes.on_fork(traced_process, parent)
        elif change is ProcessChange.EXECUTED:
            self._processes.on_exec(traced_process)
        if change is not ProcessChange.ENDED:
            self._steps.begin(traced_process.slot)
        self._follow_stacks(traced_process, change, parent)
        self._processes.write(
            traced_process, self.clock.unix_ns_of(seen_ns) if seen_ns is not None else self.clock.now_ns()
        )

    def _follow_stacks(
        self, traced_process: TracedProcess, change: ProcessChange, parent: TracedProcess | None
    ) -> None:
        if change is ProcessChange.FORKED:
            self.stacks.on_fork(parent, traced_process)
            self._kernel_names.on_fork(parent, traced_process)
        elif change is ProcessChange.ENDED:
            self.stacks.end(traced_process)
            self._kernel_names.end(traced_process)
        else:
            follow = self._kernel_names.on_exec if change is ProcessChange.EXECUTED else self._kernel_names.begin
            follow(traced_process)
            self.stacks.begin(traced_process)

    def libraries_used(self, copies: Sequence[LibraryCopy]) -> None:
        """Notes since when the calls of the processes that use these copies are traced."""
        self._unseen.note(copies, self.libraries.probed_ns, self.traced_processes)

    def probes_changed(self, results: Sequence[ProbeResult], unreadable: Sequence[UnreadableLibrary]) -> None:
        """Stores which sites were probed and which could not be; results of files that are gone are dropped."""
        kept = {copy.number for copy in self.libraries.copies}
        self.probes = [*(library for library in self.probes if library.copy.number in kept), *results]
        self._write_probes(results)
        rows: list[Row] = []
        for library in unreadable:
            reason = "; ".join(filter(None, (library.reason, library.hint)))
            logger.warning("%s is not probed: %s", library.mapped_path, reason)
            rows += tables.PROBES.rows(
                1,
                session=self._sink.session,
                library=library.mapped_path,
                symbol=library.library.value if library.library else "",
                is_attached=0,
                reason=reason,
            )
        self._sink.append(tables.PROBES, rows)

    def _note_without_lines(self, found: UnreadableInterpreter) -> None:
        """Stores that processes with this interpreter get no Python lines, and why; may run in any thread."""
        logger.info("%s", found)
        rows = tables.PROBES.rows(
            1,
            session=self._sink.session,
            library=found.file,
            symbol=PYTHON_LINES,
            is_attached=0,
            reason=str(found),
        )
        self._sink.append(tables.PROBES, rows)

    def _write_probes(self, results: Sequence[ProbeResult]) -> None:
        rows: list[Row] = []
        for result in results:
            op = result.site.op if result.site else result.missing.op if result.missing else None
            rows += tables.PROBES.rows(
                1,
                session=self._sink.session,
                library=str(result.copy.file.path),
                symbol=result.site.symbol if result.site else op.name if op else result.copy.file.library.value,
                offset=result.site.file_offset if result.site else 0,
                build_id=result.copy.file.build,
                source=int(op.source) if op else 0,
                op=op.code if op else 0,
                is_attached=int(result.is_attached),
                reason=result.reason,
            )
        self._sink.append(tables.PROBES, rows)

    def _on_calls(self, batch: np.ndarray[Any, Any]) -> None:
        numbers = self._rows.process_numbers(batch["process_slot"])
        stack_hashes = self.stacks.hashes(numbers, batch["python_stack"], batch["native_stack"])
        if not self._kernel.walker.is_kernel:
            stack_hashes = self.stacks.hung.of_returned(batch, numbers, stack_hashes)
        self.recorded_calls.add(batch, stack_hashes, self._name_of_pid, self._name_of_thread)
        self._kernel_names.note(batch, numbers)
        self._rows.calls(batch, numbers, stack_hashes)
        self._records += len(batch)

    def _on_sync_intervals(self, batch: np.ndarray[Any, Any]) -> None:
        begun = batch[batch["begin_ns"] != 0]  # the first drain of a stream has no beginning
        if len(begun):
            self._intervals = self._intervals.plus_intervals(self._rows.sync_intervals(begun))

    def _on_step_rows(self, rows: tables.Rows) -> None:
        self._intervals = self._intervals.plus_steps(rows, self._sink.intern(How.BOTH.value))

    def _on_offcpu(self, batch: np.ndarray[Any, Any]) -> None:
        numbers = self._rows.process_numbers(batch["process_slot"])
        futexes = self.stacks.futexes(numbers, batch["futex"], batch["state"] == THREAD_STATES.index("sleep"))
        self._rows.offcpu(batch, numbers, futexes, self.stacks.hashes(numbers, batch["python_stack"]))
        self._wakers.add(batch)

    def _on_lifecycle(self, batch: np.ndarray[Any, Any]) -> None:
        """Handles starts and ends of processes, whether or not a record becomes a row."""
        self.discovery.lifecycle(batch, self.clock.unix_ns_of)
        self._salvage.records("lifecycle", self._rows.lifecycle, batch)

    def _name_of_pid(self, pid: int) -> str:
        traced_process = self.traced_processes.of_pid(pid)
        return (
            (traced_process.name if traced_process else "")
            or self.seconds.culprits.names.get(pid)
            or read_thread_name(pid)
        )

    def _name_of_thread(self, tid: int) -> str:
        return self.seconds.thread_names.get(tid) or read_thread_name(tid)

    def _add_clock_pair(self) -> None:
        mono_ns, unix_ns = read_pair()
        self.clock.add_pair(mono_ns, unix_ns)
        row = tables.CLOCK_PAIRS.rows(
            1,
            session=self._sink.session,
            mono_ns=mono_ns,
            unix_ns=unix_ns,
            suspended_ns=kernel_clock.suspended_ns(),
        )
        self._sink.append(tables.CLOCK_PAIRS, row)

    def close(self) -> None:
        """Unmaps the rings."""
        self._resources.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
