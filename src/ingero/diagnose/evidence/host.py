"""Evidence about the host: its events, CPUs, scheduler settings and GPUs, and the agent's own CPU time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from ingero.diagnose.evidence.recorded import Recorded
from ingero.ops import Source
from ingero.store.host_events import HostEvent
from ingero.store.machine import GpuUse, Scheduling
from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]


class HostEvidence(Recorded):
    """The part of `Evidence` about the host."""

    def __init__(self, reader: Reader, window: Window) -> None:
        super().__init__(reader, window)
        self._host_events: dict[tuple[int, int, Source], list[HostEvent]] = {}

    def host_events(self, window: Window, source: Source) -> list[HostEvent]:
        """Host events of a source in a part of the window, or begun up to a second before it; oldest first."""
        key = (window.begin_ns, window.end_ns, source)
        if key not in self._host_events:
            wider = Window(begin_ns=window.begin_ns - SECOND_NS, end_ns=window.end_ns)
            self._host_events[key] = self.reader.host_events(wider, source=source)
        return self._host_events[key]

    @cached_property
    def scheduling(self) -> dict[tuple[int, int], list[Scheduling]]:
        """Scheduler settings of threads (policy, nice, mask), by (pid, tid), oldest first."""
        rows = self.reader.scheduling(self.window) if self.reader.is_recorded("raw_scheduling") else []
        found: dict[tuple[int, int], list[Scheduling]] = defaultdict(list)
        for row in rows:
            found[row.pid, row.tid].append(row)
        return dict(found)

    @cached_property
    def cpu_seconds(self) -> Array:
        """The time of each CPU by use and second (`store.machine.CPU_SECOND_DTYPE`)."""
        return self.reader.cpu_seconds(self.window)

    @cached_property
    def agent_pids(self) -> frozenset[int]:
        """Pids of the agent."""
        return self.reader.agent_pids(self.window)

    def agent_cpus(self, windows: Iterable[Window]) -> float:
        """CPUs that the agent used in these time ranges, on average; its use between two readings counts as even."""
        times, used_ns = self._agent_use
        ends = [(window.begin_ns, window.end_ns) for window in windows]
        grown = sum(float(np.diff(np.interp(pair, times, used_ns))[0]) for pair in ends)
        return grown / max(sum(end - begin for begin, end in ends), 1)

    @cached_property
    def _agent_use(self) -> tuple[list[int], list[int]]:
        """Times, and the agent's CPU time until each, ns; 0 in a recording without such readings."""
        rows = self.reader.snapshots(self.window) if self.reader.is_recorded("raw_snapshots") else []
        begin_ns = max((session.started_ns for session in self.sessions), default=0)
        times, total = [min(begin_ns, rows[0].time_ns) if rows else begin_ns], [0]
        for row in rows:
            times.append(row.time_ns)
            total.append(total[-1] + (row.agent_cpu_ns or 0))
        return times, total

    @cached_property
    def gpu_samples(self) -> list[GpuUse]:
        """NVML's samples of the GPUs, second by second."""
        return self.reader.gpu_samples(self.window) if self.reader.is_recorded("raw_gpu_samples") else []

    @cached_property
    def process_gpus(self) -> dict[tuple[int, int], str]:
        """GPUs (uuid) by (process, ordinal); ordinal -1: the GPU behind every ordinal that the process uses."""
        return self.reader.process_gpus() if self.reader.is_recorded("raw_process_gpus") else {}

    @cached_property
    def gpu_slices(self) -> tuple[set[str], dict[tuple[int, str], str]]:
        """GPUs (uuid) divided into MIG slices, and the slice of each process by (process, uuid)."""
        return self.reader.gpu_slices() if self.reader.is_recorded("raw_process_gpus") else (set(), {})

    @cached_property
    def gpus_of_pids(self) -> dict[int, set[str]]:
        """The GPUs (uuid) on which the driver saw memory of a process, by pid."""
        found: dict[int, set[str]] = defaultdict(set)
        for sample in self.gpu_samples:
            for pid, _ in sample.processes:
                found[pid].add(sample.uuid)
        return found
