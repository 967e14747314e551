"""What a recording says about a window, read when a rule first asks for it and kept.

No SQL here and no clock: `store.reader` answers, and the same evidence gives the same diagnosis.
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
from ingero.diagnose.evidence.interval_cache import KeptReads
from ingero.diagnose.evidence.processes import ProcessEvidence
from ingero.diagnose.evidence.recorded import OFFCPU
from ingero.diagnose.evidence.threads import ThreadEvidence
from ingero.diagnose.lost_time.coverage_changes import WholeWork
from ingero.diagnose.offcpu.interval_blocks import OffcpuBlocks
from ingero.diagnose.offcpu.path_windows import WaitWindows
from ingero.diagnose.profile.report import Profiles, profiles
from ingero.diagnose.steps.host_lead import Leads, awaited, leads
from ingero.diagnose.steps.launching_threads import Launching, launching_threads
from ingero.diagnose.steps.main_stream import judged_alone
from ingero.diagnose.steps.pacing import PacedBy, as_paced, paces, refills
from ingero.diagnose.steps.process_steps import ProcessSteps, pacing_streams, process_steps
from ingero.diagnose.steps.run_ahead import joined, joined_like
from ingero.ops import is_launch
from ingero.store.arrays import arrays
from ingero.store.arrays.gpu_streams import GpuStream
from ingero.store.reader import Reader
from ingero.store.records import Window

if TYPE_CHECKING:
    from ingero.diagnose.steps.gpu_idle import GpuIdle

Array = np.ndarray[Any, np.dtype[Any]]


def _usable(gpu_streams: Iterable[GpuStream]) -> list[GpuStream]:
    """Without the sync intervals that nothing can be compared with."""
    found = []
    for gpu_stream in gpu_streams:
        work = WholeWork(gpu_stream.sync_intervals, are_steps=gpu_stream.is_steps)
        found.append(replace(gpu_stream, sync_intervals=work.comparable(gpu_stream.sync_intervals)))
    return [gpu_stream for gpu_stream in found if len(gpu_stream.sync_intervals)]


class Evidence(ProcessEvidence, ThreadEvidence, CallEvidence, HostEvidence):
    """The evidence of one window. Arrays are those of `store.arrays`; everything is read-only.

    Its own questions are about time: steps and sync intervals, and the waits between them.

    is_live: the recording goes on, and what is read is read again in a second; verdicts are for its end. reads: what
    was read for other windows, too.
    """

    def __init__(
        self, reader: Reader, window: Window, *, is_live: bool = False, reads: KeptReads | None = None
    ) -> None:
        super().__init__(reader, window)
        self.is_live = is_live
        self._reads = reads or KeptReads()
        self.gpu_idle: dict[int, GpuIdle] = {}  # what `diagnose.gpu_idle` has found, by process
        self._launching: dict[int, Launching] = {}
        self._leads: dict[int, Leads] = {}
        self._works: dict[int, WholeWork] = {}
        self._offcpu = OffcpuBlocks(reader.offcpu_rows)

    def name_of_pid(self, pid: int) -> str:
        """The name of a process that was traced, seen as somebody's culprit, or on a GPU; "" where it never was."""
        named = next((one.name for one in self.processes.values() if one.pid == pid and one.name), "")
        return named or next((one.names[pid] for one in self.gpu_samples if pid in one.names), "")

    @cached_property
    def profiles(self) -> Profiles:
        """What a profiler measured; only an imported recording has any."""
        return Profiles(reports=(), collectives=()) if self.is_live else profiles(self.reader, self.window)

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

    def _whole_work(self, process: int) -> WholeWork:
        """What the steps or sync intervals do that a process is judged by."""
        if process not in self._works:
            main = self.main_streams[process]
            known = self.repeated_steps if main.is_steps else self.synced_streams
            mine = next(
                one
                for one in known
                if one.process == process and (main.is_steps or (one.device, one.stream) == (main.device, main.stream))
            )
            self._works[process] = WholeWork(mine.sync_intervals, are_steps=main.is_steps)
        return self._works[process]

    def _read_steps(self, window: Window, process: int) -> Array:
        return self._whole_work(process).comparable(self.reader.steps(window, process=process))

    def _read_sync_intervals(self, window: Window, process: int) -> Array:
        gpu_stream = self.main_streams[process]
        mine: Array = self.reader.sync_intervals(window, process=process)
        mine = mine[(mine["stream"] == gpu_stream.stream) & (mine["device"] == gpu_stream.device)]
        mine = self._whole_work(process).comparable(mine)
        known = self.gpu_stream_in(window, process)
        if len(mine) >= len(known):
            return mine
        made: Array = arrays.without_clocks(known, process=process, pid=gpu_stream.pid)
        made["device"], made["stream"] = gpu_stream.device, gpu_stream.stream
        return made

    @property
    def no_sync_intervals(self) -> Array:
        """None, of the whole kind."""
        return np.zeros(0, arrays.SYNC_INTERVAL_DTYPE)

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

    @cached_property
    def waits(self) -> WaitWindows:
        """The paths through them."""
        return WaitWindows(self._offcpu.rows, self.threads)

    def of_paths(self, key: Hashable, until_ns: int, ask: Callable[[], Answer]) -> Answer:
        """What paths until then answer, which somebody who looks again and again may remember by its key."""
        del key, until_ns
        return ask()
