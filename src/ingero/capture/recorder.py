"""The live loop: records become rows as they come, everything else is read once a second."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ingero.attach.kernel_side import KernelSide
from ingero.capture.calibration import calibrate
from ingero.capture.clocks import PAIR_PERIOD_NS, WallClock, read_pair
from ingero.capture.communicators import CommunicatorRows
from ingero.capture.drainer import Drainer
from ingero.capture.governor import Governor
from ingero.capture.gpus import GpuRows, UnseenCalls
from ingero.capture.host_sums import lifecycle_sums
from ingero.capture.identity import CgroupRows
from ingero.capture.libraries import LibraryProbes, ProbeResult
from ingero.capture.processes import ProcessRows
from ingero.capture.recorded_calls import RecordedCalls
from ingero.capture.rows import RowMaker, Sink
from ingero.capture.second import Second, SecondReader
from ingero.capture.snapshots import SnapshotRows
from ingero.capture.spans import ChangedSpans
from ingero.capture.targets import Targets
from ingero.capture.wakers import WakerRows
from ingero.discover.gpus import present_gpus
from ingero.discover.processes import descendants, list_processes
from ingero.ops import Library
from ingero.store import tables
from ingero.store.tables import Row

logger = logging.getLogger(__name__)

_TICK_NS = 1_000_000_000
_IDLE_TICKS = 5  # readings without a target before the programs are detached; attaching again takes 50 ms
_CROWDED_TICK_NS = 50_000_000  # long enough for the last switch of a thread that has ended
_FORK, _EXEC, _EXIT = 1, 2, 3  # struct lifecycle_record kind


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderOptions:
    """pids: the processes to trace with their children; empty: every process that uses a traced library.

    uid: of the processes to trace; None: everybody's. is_target must agree.
    launches_at_driver_only, libraries, given_files: see LibraryProbes.
    deadband_percent, heartbeat_s: see SnapshotRows.
    max_overhead_ratio: of the busiest traced thread's time; max_cpu_ratio: of one core; 0: no limit.
    shown_calls: so many recorded calls a second are kept to be shown, see `Recorder.recorded_calls`.
    """

    pids: Sequence[int] = ()
    uid: int | None = None
    launches_at_driver_only: bool = False
    libraries: frozenset[Library] = frozenset(Library)
    given_files: Sequence[Path] = ()
    deadband_percent: float = 0
    heartbeat_s: float = 0
    max_overhead_ratio: float = 0
    max_cpu_ratio: float = 0
    shown_calls: int = 0
    is_target: Callable[[int], bool] = field(default=lambda _pid: True)


class Recorder:
    """One recording from attach to detach. Use as a context manager; `run` until told to stop."""

    def __init__(self, kernel: KernelSide, sink: Sink, options: RecorderOptions) -> None:
        self._kernel, self._sink, self._options = kernel, sink, options
        self._resources = ExitStack()
        self.clock = WallClock()
        self._add_clock_pair()
        boot_unix_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.targets = Targets(kernel, boot_unix_ns, sink.process_id)
        self.libraries = LibraryProbes(
            kernel,
            launches_at_driver_only=options.launches_at_driver_only,
            libraries=options.libraries,
            given_files=options.given_files,
        )
        self.probes: list[ProbeResult] = []
        self._cgroups = CgroupRows(sink)
        self.seconds = SecondReader(kernel, sink, self.clock, self.targets, self._cgroups)
        gpus = GpuRows(sink, present_gpus())
        self._processes = ProcessRows(sink, self._cgroups, gpus)
        self._unseen = UnseenCalls(kernel)
        self._snapshots = SnapshotRows(sink, options.deadband_percent, options.heartbeat_s)
        self.recorded_calls = RecordedCalls(options.shown_calls, self.clock)
        spans = ChangedSpans()
        self._rows = RowMaker(
            sink,
            self.clock,
            self.targets,
            name_of_pid=self._name_of_pid,
            name_of_thread=self._name_of_thread,
            cgroup_keys=self._cgroups.keys,
            default_device=gpus.default_device,
            is_changed=spans.touch,
        )
        self._communicators = CommunicatorRows(kernel, sink, self.clock, self.targets)
        self.seconds.on_forget = self._communicators.forget
        consumers = {
            "lifecycle": self._on_lifecycle,
            "calls": self._on_calls,
            "epochs": self._on_epochs,
            "offcpu": self._on_offcpu,
            "host": self._rows.host_events,
            "nccl": self._communicators.add,
        }
        self._wakers = WakerRows(sink, self.targets, self._name_of_thread)
        self._drainer = self._resources.enter_context(Drainer(kernel, consumers))
        self.governor = Governor(
            kernel,
            sink,
            self.seconds,
            self._drainer,
            spans,
            max_overhead_ratio=options.max_overhead_ratio,
            max_cpu_ratio=options.max_cpu_ratio,
        )
        self.probe_ns = 0  # what a call's account would hold of the probe itself
        self._idle_ticks = self._refused = 0
        self._records = 0
        self._epoch_rows: list[Row] = []
        self._sink_losses: dict[tuple[str, str], int] = {}

    def start(self) -> None:
        """Attaches clocks and host events, finds targets, probes their libraries."""
        self._kernel.start()
        self.probe_ns = calibrate(self._kernel, self._drainer.rings["calls"], self.seconds.forget)
        self.governor.start()
        # enrolled last: nobody empties a target's buffers while probes are being attached
        self.find_targets()
        self._enroll_families()
        self._drainer.empty_buffers()
        if not any(self.targets):
            self._kernel.pause()

    def run(self, *, should_stop: Callable[[], bool], on_second: Callable[[Second], None]) -> None:
        """Records until told to stop; `on_second` gets each second after it is stored."""
        last_ns = time.monotonic_ns()
        while not should_stop():
            self._drainer.wait(last_ns + _TICK_NS)
            now_ns = time.monotonic_ns()
            if now_ns - last_ns >= (_CROWDED_TICK_NS if self.targets.is_crowded else _TICK_NS):
                on_second(self._tick(now_ns - last_ns))
                last_ns = now_ns
        on_second(self._finish(time.monotonic_ns() - last_ns))

    def _tick(self, elapsed_ns: int) -> Second:
        self.find_targets()
        if time.monotonic_ns() - self.clock.last_pair_mono_ns >= PAIR_PERIOD_NS:
            self._add_clock_pair()
        second = self._read_second(elapsed_ns)
        self.governor.act()
        self._cgroups.tick()
        system, agent = self._snapshots.write(second.time_ns, elapsed_ns, self._cgroups.cpu_stats)
        self._rest()
        return replace(second, system=system, agent=agent)

    def _rest(self) -> None:
        """Without anything to account for, no program stays on the scheduler's path."""
        self._idle_ticks = 0 if any(self.targets) else self._idle_ticks + 1
        if self._idle_ticks == _IDLE_TICKS:
            self._kernel.pause()

    def _finish(self, elapsed_ns: int) -> Second:
        """Stops in the order that keeps counts exact: no more targets, then detach, then the last reading."""
        for target in self.targets:
            self._kernel.release(target.pid)
        self._drainer.empty_buffers()  # detaching takes long enough to fill them
        self._kernel.detach_calls()
        self._drainer.drain_all()
        self._add_clock_pair()
        second = self._read_second(elapsed_ns)
        self._cgroups.seek(is_last=True)
        self._drainer.drain_all()  # off-CPU intervals that the last reading has emptied
        self.seconds.flush_sites(second.time_ns)
        for target in self.targets:
            if target.exit_ns is None:
                self._processes.write(target, second.time_ns)
        return second

    def _read_second(self, elapsed_ns: int) -> Second:
        self._wakers.write(self.clock.now_ns() - elapsed_ns)
        self._communicators.write()
        second = self.seconds.read(self.clock.now_ns(), max(elapsed_ns, 1) / 1e9)
        self._count_own_losses(second)
        records, self._records = self._records, 0
        epochs, self._epoch_rows = self._epoch_rows, []
        host = [*second.host, *lifecycle_sums(self._rows.take_lifecycle())]
        own = self.governor.observe(second)
        return replace(
            second,
            records=records,
            epochs=epochs,
            host=host,
            overhead_ratio=own.overhead.ratio,
            agent_cpu_ratio=own.agent_cpu_ratio,
            rung=own.rung,
            not_traced=own.not_traced,
        )

    def _count_own_losses(self, second: Second) -> None:
        """Rows that the writer could not take, processes that found no slot."""
        losses = self._sink.losses()
        growth = {
            f"rows_lost_{table}_{reason}".replace(" ", "_"): count - self._sink_losses.get((table, reason), 0)
            for (table, reason), count in losses.items()
        }
        self._sink_losses = losses
        growth["process_slots_full"] = len(self.targets.refused) - self._refused
        self._refused = len(self.targets.refused)
        grown = {name: count for name, count in growth.items() if count}
        if grown:
            self.seconds.count_losses(grown, second.time_ns)
            for name, count in grown.items():
                second.losses[name] = second.losses.get(name, 0) + count

    def find_targets(self) -> None:
        """Probes library copies not seen before, then enrolls the processes that use them, unless pids were given."""
        scan = self.libraries.scan()
        wanted = self._wanted(scan.pids)
        results = self.libraries.attach_new([copy for copy in scan.copies if not wanted.isdisjoint(copy.pids)])
        self.probes += results
        self._write_probes(results)
        self._unseen.note(scan.copies, self.libraries.probed_ns, self.targets)
        if self._options.pids:
            return
        for pid in scan.pids:
            if pid != os.getpid() and self.targets.of_pid(pid) is None and self._options.is_target(pid):
                self._add_target(pid)

    def _wanted(self, users: Sequence[int]) -> set[int]:
        """Targets, and who is to become one. A copy that only others use is not probed: they would pay for it."""
        if not self._options.pids:
            return {pid for pid in users if self._options.is_target(pid)}
        if len(self.targets):
            return {target.pid for target in self.targets}
        return {*self._options.pids, *descendants(self._options.pids, list_processes())}

    def _enroll_families(self) -> None:
        """The processes asked for by pid and all their descendants; the kernel follows what these fork from then on.

        Until nothing new is found: a child may be forked between the look at /proc and its parent's enrollment.
        """
        wanted: Sequence[int] = self._options.pids
        while [pid for pid in wanted if self.targets.of_pid(pid) is None and self._add_target(pid)]:
            wanted = descendants(self._options.pids, list_processes())
            self._drainer.drain()  # makes known what the kernel has already followed

    def _add_target(self, pid: int) -> bool:
        self._kernel.start()
        target = self.targets.add(pid)
        if target:
            self._processes.write(target, self.clock.now_ns())
        return target is not None

    def _write_probes(self, results: Sequence[ProbeResult]) -> None:
        rows: list[Row] = []
        for result in results:
            op = result.site.op if result.site else result.missing.op if result.missing else None
            rows += tables.PROBES.rows(
                1,
                session=self._sink.session,
                library=str(result.copy.file.path),
                symbol=result.site.symbol if result.site else op.name if op else "",
                offset=result.site.file_offset if result.site else 0,
                build_id=result.copy.file.build,
                source=int(op.source) if op else 0,
                op=op.code if op else 0,
                is_attached=int(result.is_attached),
                reason=result.reason,
            )
        self._sink.append(tables.PROBES, rows)

    def _on_calls(self, batch: np.ndarray[Any, Any]) -> None:
        self._records += len(batch)
        self.recorded_calls.add(batch, self._name_of_pid, self._name_of_thread)
        self._rows.calls(batch)

    def _on_epochs(self, batch: np.ndarray[Any, Any]) -> None:
        self._epoch_rows += self._rows.epochs(batch)

    def _on_offcpu(self, batch: np.ndarray[Any, Any]) -> None:
        self._rows.offcpu(batch)
        self._wakers.add(batch)

    def _on_lifecycle(self, batch: np.ndarray[Any, Any]) -> None:
        for record in batch:
            kind, pid, slot = int(record["kind"]), int(record["pid"]), int(record["process_slot"])
            if slot == 0xFFFF:
                continue
            if kind == _FORK:
                target = self.targets.forked(int(record["other_pid"]), slot, int(record["start_boottime_ns"]))
                parent = self.targets.of_pid(pid)
                if parent:
                    self._processes.forked(target, parent)
                self._processes.write(target, self.clock.unix_ns_of(int(record["time_ns"])))
            elif kind == _EXEC:
                program = self.targets.executed(pid, record["comm"].decode(errors="replace"))
                if program:
                    self._processes.executed(program)
                    self._processes.write(program, self.clock.unix_ns_of(int(record["time_ns"])))
            elif kind == _EXIT:
                end_ns = self.clock.unix_ns_of(int(record["time_ns"]))
                gone = self.targets.exited(pid, end_ns, int(record["code"]))
                if gone:
                    self._processes.write(gone, end_ns)
        self._rows.lifecycle(batch)

    def _name_of_pid(self, pid: int) -> str:
        target = self.targets.of_pid(pid)
        return (target.name if target else "") or self.seconds.culprits.names.get(pid) or _comm(pid)

    def _name_of_thread(self, tid: int) -> str:
        return self.seconds.thread_names.get(tid) or _comm(tid)

    def _add_clock_pair(self) -> None:
        mono_ns, unix_ns = read_pair()
        self.clock.add_pair(mono_ns, unix_ns)
        row = tables.CLOCK_PAIRS.rows(1, session=self._sink.session, mono_ns=mono_ns, unix_ns=unix_ns)
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


def _comm(tid: int) -> str:
    try:
        return Path(f"/proc/{tid}/comm").read_text().rstrip("\n")
    except OSError:
        return ""
