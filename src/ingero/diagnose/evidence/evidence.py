"""The evidence that a recording holds for a window, read on first use and kept.

It has no SQL and no clock: `store.reader` answers, and the same evidence gives the same diagnosis.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ingero.diagnose.evidence.answer_cache import Answer
from ingero.diagnose.evidence.calls import CallEvidence
from ingero.diagnose.evidence.host import HostEvidence
from ingero.diagnose.evidence.interval_cache import IntervalCache
from ingero.diagnose.evidence.processes import ProcessEvidence
from ingero.diagnose.evidence.recorded import OFFCPU
from ingero.diagnose.evidence.threads import ThreadEvidence
from ingero.diagnose.lost_time.coverage_changes import FullyTracedWork
from ingero.diagnose.offcpu.interval_blocks import OffcpuBlocks
from ingero.diagnose.offcpu.path_windows import PathWindows
from ingero.diagnose.profile.report import Profiles, profile_reports
from ingero.diagnose.steps.host_lead import HostLeads, host_leads, most_awaited_intervals
from ingero.diagnose.steps.launching_threads import LaunchingThreads, launching_threads
from ingero.diagnose.steps.main_stream import judged_alone
from ingero.diagnose.steps.pacing import PacedBy, as_paced, is_refill, paced_by_type
from ingero.diagnose.steps.process_steps import ProcessSteps, pacing_streams, process_steps
from ingero.diagnose.steps.run_ahead import merge_repaid_steps, merge_whole_steps
from ingero.ops import is_launch
from ingero.store.arrays import arrays
from ingero.store.arrays.gpu_streams import GpuStream
from ingero.store.reader import Reader
from ingero.store.records import Window

if TYPE_CHECKING:
    from ingero.diagnose.steps.gpu_idle import GpuIdle

Array = np.ndarray[Any, np.dtype[Any]]


def _usable(gpu_streams: Iterable[GpuStream]) -> list[GpuStream]:
    """These streams without the sync intervals that cannot be compared with others."""
    found = []
    for gpu_stream in gpu_streams:
        work = FullyTracedWork(gpu_stream.sync_intervals, are_steps=gpu_stream.is_steps)
        found.append(replace(gpu_stream, sync_intervals=work.comparable(gpu_stream.sync_intervals)))
    return [gpu_stream for gpu_stream in found if len(gpu_stream.sync_intervals)]


class Evidence(ProcessEvidence, ThreadEvidence, CallEvidence, HostEvidence):
    """The evidence of one window. Arrays are those of `store.arrays`; everything is read-only.

    This class itself answers for time: steps, sync intervals and the waits between them.

    is_live: the recording is ongoing, and the next pass reads it again in a second; verdicts wait for its end. reads:
    whole sync intervals that earlier passes have read.
    """

    def __init__(
        self, reader: Reader, window: Window, *, is_live: bool = False, reads: IntervalCache | None = None
    ) -> None:
        super().__init__(reader, window)
        self.is_live = is_live
        self._reads = reads or IntervalCache()
        self.gpu_idle: dict[int, GpuIdle] = {}  # answers of `steps.gpu_idle`, by process
        self.trainers = self._reads.trainers  # numbers of processes, as `samples.process_roles` finds them
        self._launching: dict[int, LaunchingThreads] = {}
        self._leads: dict[int, HostLeads] = {}
        self._works: dict[int, FullyTracedWork] = {}
        self._offcpu = OffcpuBlocks(reader.offcpu_rows)

    def name_of_pid(self, pid: int) -> str:
        """The name of a process that was traced, or seen as a culprit or on a GPU; "" if it never was."""
        named = next((one.name for one in self.processes.values() if one.pid == pid and one.name), "")
        return named or next((one.names[pid] for one in self.gpu_samples if pid in one.names), "")

    @cached_property
    def profiles(self) -> Profiles:
        """Reports of processes that a profiler measured; only an imported recording has any."""
        return Profiles(reports=(), collectives=()) if self.is_live else profile_reports(self.reader, self.window)

    @cached_property
    def main_streams(self) -> dict[int, GpuStream]:
        """The stream that sets each process's pace; of two, the one with more GPU work. Streams are never summed."""
        if not self.reader.is_recorded("raw_sync_intervals"):
            return {}
        synced = judged_alone(self.synced_streams, self._launches)
        profiled = {report.process.process for report in self.profiles.reports}  # whose GPU time is measured
        steps = [gpu_stream for gpu_stream in self.repeated_steps if gpu_stream.process not in profiled]
        gpu_streams = pacing_streams(_usable(synced), _usable(steps)).items()
        return {
            number: replace(main, sync_intervals=merge_repaid_steps(main.sync_intervals)) if main.is_steps else main
            for number, main in gpu_streams
        }

    @cached_property
    def steps(self) -> dict[int, ProcessSteps]:
        """The steps of each process and how they are known, by its number."""
        return process_steps(self.main_streams, self.repeated_steps, self.profiles.reports)

    def _launches(self, process: int) -> float:
        calls = self.ops((self.window,), process) if self.reader.is_recorded("raw_op_stats") else []
        return sum(op.count for op in calls if is_launch(op.source, op.op))

    @cached_property
    def synced_streams(self) -> list[GpuStream]:
        """The sync intervals of every stream that ended in the window, in short form."""
        return self.read_gpu_streams()

    @cached_property
    def repeated_steps(self) -> list[GpuStream]:
        """The steps by repetition of every process in the window, in short form."""
        return self.read_step_gpu_streams()

    def read_gpu_streams(self) -> list[GpuStream]:
        """Every stream of the window with its sync intervals in short form, from the reader."""
        return self.reader.gpu_streams(self.window)

    def read_step_gpu_streams(self) -> list[GpuStream]:
        """The steps by repetition of every process in the window, in short form, from the reader."""
        return self.reader.step_gpu_streams(self.window)

    @cached_property
    def paced_by_type(self) -> dict[int, dict[int, PacedBy]]:
        """What sets the pace of each step type, by process; only processes with steps by repetition."""
        return {
            process: paced_by_type(gpu_stream.sync_intervals)
            for process, gpu_stream in self.main_streams.items()
            if gpu_stream.is_steps
        }

    @cached_property
    def gpu_streams(self) -> dict[int, Array]:
        """The main stream's sync intervals of each process in short (`store.arrays.GPU_STREAM_DTYPE`), sorted by end.

        Steps by repetition that refill an emptied launch queue are left out.
        """
        return {
            process: self._as_paced(gpu_stream.sync_intervals, process)
            for process, gpu_stream in self.main_streams.items()
        }

    @cached_property
    def _refill_ends(self) -> dict[int, Array]:
        """End times of the steps that refill an emptied launch queue, by process with steps by repetition."""
        gpu_streams = {
            process: gpu_stream.sync_intervals
            for process, gpu_stream in self.main_streams.items()
            if gpu_stream.is_steps
        }
        return {
            process: steps["sync_end_ns"][is_refill(steps, self.paced_by_type[process])]
            for process, steps in gpu_streams.items()
        }

    def _as_paced(self, sync_intervals: Array, process: int) -> Array:
        if process not in self.paced_by_type:
            return sync_intervals
        judged: Array = sync_intervals[~np.isin(sync_intervals["sync_end_ns"], self._refill_ends[process])]
        leads = self.host_leads(process)
        return as_paced(judged, self.paced_by_type[process], leads.of(judged), leads.ahead_ns)

    def host_leads(self, process: int) -> HostLeads:
        """Whether host or GPU sets the pace of a process's steps by repetition, as far as its waits show."""
        if process not in self._leads:
            waits = most_awaited_intervals(self.synced_streams, process)
            self._leads[process] = host_leads(self.main_streams[process].sync_intervals, waits)
        return self._leads[process]

    @cached_property
    def _gpu_stream_ends(self) -> dict[int, Array]:
        """End times of the sync intervals of `gpu_streams`, contiguous in memory for searching."""
        return {
            process: np.ascontiguousarray(sync_intervals["sync_end_ns"])
            for process, sync_intervals in self.gpu_streams.items()
        }

    def gpu_stream_in(self, window: Window, process: int) -> Array:
        """The sync intervals of a process's main stream that ended in a part of the window, in short form."""
        first, last = np.searchsorted(self._gpu_stream_ends[process], (window.begin_ns, window.end_ns))
        mine: Array = self.gpu_streams[process][first:last]
        return mine

    def sync_intervals(self, window: Window, process: int) -> Array:
        """The whole sync intervals (`store.arrays.SYNC_INTERVAL_DTYPE`) of a main stream that ended in a window.

        Where the size limit has pruned them, they are made from the short form, without thread-state times.
        """
        if self.main_streams[process].is_steps:  # cached by another key: later a process may be judged by syncs
            return self._as_paced(self._merged_steps(window, process), process)
        return self._reads.get(
            window, process, lambda: self._with_merged_threads(self._read_sync_intervals(window, process), process)
        )

    def launching(self, process: int) -> LaunchingThreads:
        """The launching threads of a process in the entire window: within a case, launches may not be traced."""
        if process not in self._launching:
            launching = self.reader.launching_threads(self.window, process=process)
            names = [(thread.tid, thread.name) for thread in self._every_thread if thread.process == process]
            self._launching[process] = LaunchingThreads(launching_threads(launching, names), self.critical_paths.path)
        return self._launching[process]

    def _with_merged_threads(self, sync_intervals: Array, process: int) -> Array:
        return self.launching(process).merge_thread_states(sync_intervals) if self.has_offcpu else sync_intervals

    def _merged_steps(self, window: Window, process: int) -> Array:
        short = self.gpu_stream_in(window, process)
        is_merged = len(short) > 0 and bool(short["joined"].any())
        if is_merged:  # the first may begin with steps that ended before the window
            window = Window(begin_ns=min(window.begin_ns, int(short["prev_sync_end_ns"][0]) + 1), end_ns=window.end_ns)
        steps = self._reads.get(
            window, -process, lambda: self._with_merged_threads(self._read_steps(window, process), process)
        )
        return merge_whole_steps(steps, short) if is_merged else steps

    def _fully_traced_work(self, process: int) -> FullyTracedWork:
        """The work of the fully traced intervals, steps or sync intervals, that a process is judged by."""
        if process not in self._works:
            main = self.main_streams[process]
            known = self.repeated_steps if main.is_steps else self.synced_streams
            mine = next(
                one
                for one in known
                if one.process == process and (main.is_steps or (one.device, one.stream) == (main.device, main.stream))
            )
            self._works[process] = FullyTracedWork(mine.sync_intervals, are_steps=main.is_steps)
        return self._works[process]

    def _read_steps(self, window: Window, process: int) -> Array:
        return self._fully_traced_work(process).comparable(self.reader.steps(window, process=process))

    def _read_sync_intervals(self, window: Window, process: int) -> Array:
        gpu_stream = self.main_streams[process]
        mine: Array = self.reader.sync_intervals(window, process=process)
        mine = mine[(mine["stream"] == gpu_stream.stream) & (mine["device"] == gpu_stream.device)]
        mine = self._fully_traced_work(process).comparable(mine)
        known = self.gpu_stream_in(window, process)
        if len(mine) >= len(known):
            return mine
        made: Array = arrays.without_clocks(known, process=process, pid=gpu_stream.pid)
        made["device"], made["stream"] = gpu_stream.device, gpu_stream.stream
        return made

    @property
    def no_sync_intervals(self) -> Array:
        """An empty array of whole sync intervals."""
        return np.zeros(0, arrays.SYNC_INTERVAL_DTYPE)

    @property
    def has_offcpu(self) -> bool:
        """Whether the recording can hold off-CPU intervals."""
        return not self.why_unavailable((OFFCPU,))

    @cached_property
    def offcpu(self) -> Array:
        """The off-CPU intervals of every traced thread in the entire window: many. `offcpu_in` reads a part."""
        return self.reader.offcpu_rows(self.window)

    def offcpu_in(self, window: Window) -> Array:
        """The off-CPU intervals that touch a part of the window."""
        return self._offcpu.rows(window)

    @cached_property
    def critical_paths(self) -> PathWindows:
        """The critical paths through off-CPU intervals."""
        return PathWindows(self._offcpu.rows, self.threads)

    def cached_path_answer(self, key: Hashable, until_ns: int, ask: Callable[[], Answer]) -> Answer:
        """The answer of `ask` about paths that end at until_ns; a live diagnosis remembers it by its key."""
        del key, until_ns
        return ask()
