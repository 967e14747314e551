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
from ingero.capture.foreign.readers import Foreign
from ingero.capture.host.gpu_samples import GpuSamples, Listed
from ingero.capture.host.gpus import GpuRows, UnseenCalls
from ingero.capture.host.numa import write_numa_nodes
from ingero.capture.host.scheduling import SchedulingRows
from ingero.capture.host.snapshots import SnapshotRows
from ingero.capture.libraries.libraries import LibraryProbes, ProbeResult
from ingero.capture.loop.clocks import PAIR_PERIOD_NS, WallClock, read_pair
from ingero.capture.loop.coverage_spans import TracedSpans
from ingero.capture.loop.drainer import Drainer
from ingero.capture.loop.period import period_until
from ingero.capture.loop.salvage import Salvage
from ingero.capture.loop.second import Second, SecondReader
from ingero.capture.loop.watchdog import Watchdog
from ingero.capture.processes.cgroup_rows import CgroupRows
from ingero.capture.processes.process_discovery import Change, Pickup, Wanted
from ingero.capture.processes.process_rows import ProcessRows
from ingero.capture.processes.traced_processes import Target, Targets
from ingero.capture.records.communicators import CommunicatorRows
from ingero.capture.records.recorded_calls import RecordedCalls
from ingero.capture.records.rows import RowMaker, Sink
from ingero.capture.stacks.halted_processes import Halts
from ingero.capture.stacks.kernel_names import KernelNames
from ingero.capture.stacks.stack_samples import Samples
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
_IDLE_TICKS = 5  # readings without a target before the programs are detached; attaching again takes 50 ms
_CROWDED_TICK_NS = 50_000_000  # long enough for the last switch of a thread that has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderOptions:
    """pids: the processes to trace with their children; empty: every process that uses a traced library.

    uid: of these only those of this real user id; None: everybody's. is_traced: see Wanted.
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
    """One recording from attach to detach. Use as a context manager; `run` until told to stop.

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
        wanted = Wanted(pids=options.pids, uid=options.uid, is_traced=options.is_traced)
        self._foreign = foreign = self._resources.enter_context(Foreign(nursery))
        self.targets = Targets(kernel, boot_unix_ns, sink.process_id, foreign.memory_files)
        self.libraries = LibraryProbes(
            kernel,
            launches_at_driver_only=options.launches_at_driver_only,
            libraries=options.libraries,
            given_files=options.given_files,
            reader=foreign.libraries,
        )
        self.pickup = Pickup(kernel, self.targets, wanted, self, self.libraries, foreign.memory_files, foreign.disk)
        self._resources.callback(self.pickup.close)
        self.probes: list[ProbeResult] = []
        self._cgroups = CgroupRows(sink, files=foreign.root_files, memory=foreign.memory_files)
        self.seconds = SecondReader(
            kernel, sink, self.clock, self.targets, self._cgroups, own := OwnProcesses(lambda: foreign.pids)
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
        spans = TracedSpans()
        self._rows = RowMaker(
            sink,
            self.clock,
            self.targets,
            name_of_pid=self._name_of_pid,
            name_of_thread=self._name_of_thread,
            cgroup_keys=self._cgroups.keys,
            default_device=gpus.default_device,
            is_changed=spans.changed.touch,
            owners=own.owners,
        )
        step_rows = StepRows(
            sink,
            self.clock,
            numbers_of=self._rows.process_numbers,
            devices_of=self._rows.devices,
            spans=spans,
            written=self._on_step_rows,
        )
        self._steps = StepFinder(kernel, self.targets, step_rows)
        marks = MarkRows(sink, self.clock, numbers_of=self._rows.process_numbers, devices_of=self._rows.devices)
        self._communicators = CommunicatorRows(kernel, sink, self.clock, self.targets, self._note_members)
        self._halts = self._resources.enter_context(Halts(sink, self.clock, self.targets, foreign.waits))
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
        self.seconds.stack_of_open_call = self.stacks.hung.stack_of
        self.has_stacks = options.with_stacks
        self._samples = Samples(kernel, sink, self.clock, self.targets, self.stacks, halted=lambda: self._halts.halted)
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
        self._wakers = WakerRows(sink, self.targets, self._name_of_thread)
        self._salvage, self._watchdog = Salvage(), self._resources.enter_context(Watchdog())
        self._drainer = self._resources.enter_context(Drainer(kernel, consumers, self._salvage))
        self.seconds.backlog = self._drainer.backlog
        self.overhead_limiter = OverheadLimiter(
            kernel,
            sink,
            self.seconds,
            self._drainer,
            spans,
            max_overhead_ratio=options.max_overhead_ratio,
            max_cpu_ratio=options.max_cpu_ratio,
            with_stacks=options.with_stacks,
            rehearsal=options.rehearsal,
        )
        self.probe_ns = 0  # what a call's account would hold of the probe itself
        self._idle_ticks = self._unreadable = self._records = 0
        self._read_ns = kernel_clock.monotonic_ns()  # when sums were last read
        self._intervals = IntervalSums()  # of a second, which may last long where the machine is: no rows are kept
        self._sink_drops: dict[tuple[str, str], int] = {}

    def start(self) -> None:
        """Attaches clocks and host events, finds targets, probes their libraries."""
        self._gpu_samples.start()
        write_numa_nodes(self._sink, numa_nodes(present_gpus()))
        self._kernel.start_clocks()
        with self._drainer.working_meanwhile(self._kernel.start):  # the host events take longest to load
            self.probe_ns = calibrate(self._kernel, self._drainer.rings["calls"], self.seconds.forget)
            self.overhead_limiter.start()
            self.pickup.begin(self._drainer.drain)
            self._drainer.empty_buffers()
        if not any(self.targets):
            self._kernel.pause(keep_clocks=self.pickup.is_open)

    def run(
        self,
        *,
        should_stop: Callable[[], bool],
        on_second: Callable[[Second], None],
        is_hurried: Callable[[], bool] = lambda: False,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Records until told to stop; `on_second` gets each second after it is stored.

        is_over: the same as far as it is known at any moment, in any thread: who does not answer is not waited for.
        is_hurried: whether somebody waits for this second, which then ends after half of it.
        """
        self._foreign.end_when(is_over)
        last_ns = self._read_ns = kernel_clock.monotonic_ns()
        while not should_stop():
            self._watchdog.beat()
            self._drainer.wait(last_ns + self._tick_ns(is_hurried()))
            self.pickup.catch_up()
            self._watch_host()
            self._samples.write_parked()
            now_ns = kernel_clock.monotonic_ns()
            if now_ns - last_ns >= self._tick_ns(is_hurried()) or self.overhead_limiter.ends_second():
                on_second(self._tick())
                last_ns = now_ns
        self._watchdog.rest()
        on_second(self._finish())

    def _tick_ns(self, is_hurried: bool) -> int:
        if self.targets.is_crowded:
            return _CROWDED_TICK_NS
        return _HURRIED_TICK_NS if is_hurried else _TICK_NS

    def _tick(self) -> Second:
        self._salvage.part("process scan", self.pickup.tick)
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
        """Host events take 0.15 s to load, so the accounts of who has come do not wait for them."""
        if not self._kernel.is_running and any(self.targets):
            self._kernel.start()

    def _rest(self) -> None:
        """Without anything to account for, no program stays on the scheduler's path."""
        self._idle_ticks = 0 if any(self.targets) else self._idle_ticks + 1
        if self._idle_ticks == _IDLE_TICKS:
            self._kernel.pause(keep_clocks=self.pickup.is_open)

    def _finish(self) -> Second:
        """Stops in the order that keeps counts exact: no more targets, then detach, then the last reading."""
        self.pickup.end(self._drainer.drain)
        with self._drainer.working_meanwhile(self._kernel.detach_calls):  # it takes long enough to fill the buffers
            self._drainer.empty_buffers()
        self._drainer.drain_all()
        self._add_clock_pair()
        self._samples.write_parked()
        second = self._read_second()
        self._cgroups.seek(is_last=True)
        self._drainer.drain_all()  # off-CPU intervals that the last reading has emptied
        self.seconds.sites.flush()
        for target in self.targets:
            if target.exit_ns is None:
                self._processes.write(target, second.time_ns)
        # each may be in what does not answer, or have much to do: they end while the rows are written, and all at once
        for one in (self._kernel_names.worker, self._samples, self.stacks.worker, self._halts.worker):
            one.end()
        return second

    def _read_second(self) -> Second:
        # Whoever reads a second's sums takes its records for complete: a thread without an interval would seem to have
        # run, and a sync interval that comes after them is not looked at while tracing goes on.
        self._drainer.empty_buffers()
        self._drainer.drain_backlog()
        now_ns = kernel_clock.monotonic_ns()
        period = period_until(self.clock.now_ns(), max(now_ns - self._read_ns, 1))
        self._read_ns = now_ns
        self._salvage.part("wakers", lambda: self._wakers.write(period))
        self._salvage.part("communicators", self._communicators.write)
        self._salvage.part("processes", lambda: self._processes.look_again(list(self.targets), self.clock.now_ns()))
        second = self.seconds.read(period)
        self._salvage.part("steps", lambda: self._steps.second(second.cells))
        self._count_own_drops(second)
        threads = self.seconds.threads
        self._salvage.part(
            "scheduling", lambda: self._scheduling.write(second.time_ns, self.targets, threads, second.charges)
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

    def _count_own_drops(self, second: Second) -> None:
        """Rows that the writer could not take, processes that found no slot, libraries that cannot be read."""
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
        own["process_slots_full"] = self.targets.newly_refused()
        own["library_unreadable"] = len(self.pickup.unreadable) - self._unreadable
        self._unreadable = len(self.pickup.unreadable)
        own |= self.seconds.others_drops()
        grown = {name: count for name, count in own.items() if count}
        if grown:
            self.seconds.count_drops(grown, second.period)
            for name, count in grown.items():
                second.drops[name] = second.drops.get(name, 0) + count

    def count_late_drops(self) -> None:
        """Stores what others have dropped since the last second was read."""
        if grown := self.seconds.others_drops():
            self.seconds.count_drops(grown, period_until(self.clock.now_ns(), SECOND_NS))

    def _note_members(self, members: Mapping[int, Sequence[Membership]]) -> None:
        """Where targets are in their communicators."""
        by_number = {target.number: target for target in self.targets}
        self._processes.joined(members, by_number, self.clock.now_ns())

    def _note_gpus(self, listed: Listed) -> None:
        """Which GPUs the driver has targets on."""
        targets = ((self.targets.of_pid(pid), slices) for pid, slices in listed.items())
        self._gpus.seen({target.number: slices for target, slices in targets if target})

    def target_changed(
        self, target: Target, change: Change, seen_ns: int | None = None, parent: Target | None = None
    ) -> None:
        """Writes the row of a target that has come, become another program, or ended."""
        if change is Change.FORKED and parent:
            self._processes.forked(target, parent)
        elif change is Change.EXECUTED:
            self._processes.executed(target)
        if change is not Change.ENDED:
            self._steps.begin(target.slot)
        self._follow_stacks(target, change, parent)
        self._processes.write(target, self.clock.unix_ns_of(seen_ns) if seen_ns is not None else self.clock.now_ns())

    def _follow_stacks(self, target: Target, change: Change, parent: Target | None) -> None:
        if change is Change.FORKED:
            self.stacks.forked(parent, target)
            self._kernel_names.forked(parent, target)
        elif change is Change.ENDED:
            self.stacks.end(target)
            self._kernel_names.end(target)
        else:
            follow = self._kernel_names.executed if change is Change.EXECUTED else self._kernel_names.begin
            follow(target)
            self.stacks.begin(target)

    def libraries_used(self, copies: Sequence[LibraryCopy]) -> None:
        """Notes since when the calls of the processes that use these are seen."""
        self._unseen.note(copies, self.libraries.probed_ns, self.targets)

    def probes_changed(self, results: Sequence[ProbeResult], unreadable: Sequence[UnreadableLibrary]) -> None:
        """Notes what has been probed, and what could not be; of files that are gone nothing is kept."""
        kept = {copy.number for copy in self.libraries.copies}
        self.probes = [*(one for one in self.probes if one.copy.number in kept), *results]
        self._write_probes(results)
        rows: list[Row] = []
        for one in unreadable:
            reason = "; ".join(filter(None, (one.reason, one.hint)))
            logger.warning("%s is not probed: %s", one.mapped_path, reason)
            rows += tables.PROBES.rows(
                1,
                session=self._sink.session,
                library=one.mapped_path,
                symbol=one.library.value if one.library else "",
                is_attached=0,
                reason=reason,
            )
        self._sink.append(tables.PROBES, rows)

    def _note_without_lines(self, found: UnreadableInterpreter) -> None:
        """Stores that no lines of Python are shown of processes with this interpreter, and why; in any thread."""
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
        futexes = self.stacks.futexes(numbers, batch["futex"])
        self._rows.offcpu(batch, numbers, futexes, self.stacks.hashes(numbers, batch["python_stack"]))
        self._wakers.add(batch)

    def _on_lifecycle(self, batch: np.ndarray[Any, Any]) -> None:
        """A process has come or gone, whether or not its record makes a row."""
        self.pickup.lifecycle(batch, self.clock.unix_ns_of)
        self._salvage.records("lifecycle", self._rows.lifecycle, batch)

    def _name_of_pid(self, pid: int) -> str:
        target = self.targets.of_pid(pid)
        return (target.name if target else "") or self.seconds.culprits.names.get(pid) or read_thread_name(pid)

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
