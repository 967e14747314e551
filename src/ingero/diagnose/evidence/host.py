"""The host: its events, CPUs, scheduler and GPUs, and what the recorder itself used."""

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
    """Questions about the host."""

    def __init__(self, reader: Reader, window: Window) -> None:
        super().__init__(reader, window)
        self._host_events: dict[tuple[int, int, Source], list[HostEvent]] = {}

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
