"""Writes once a second the GPU memory in use: per call site that changed, and per process."""

from __future__ import annotations

import numpy as np

from ingero.attach.kernel_side import KernelSide
from ingero.attach.probes import ProbeMode
from ingero.capture.loop.period import Period
from ingero.capture.processes.callers import CodeLocation
from ingero.capture.processes.traced_processes import TracedProcess, TracedProcesses
from ingero.capture.records.rows import Sink
from ingero.capture.stacks.stacks import stack_hash
from ingero.capture.sums.allocations import AllocationReader, MemoryLevel, SiteGrowth
from ingero.ops import BY_ID
from ingero.store.writing import tables

_COLUMNS = ("live_bytes", "live_count", "peak_bytes", "allocated_bytes", "freed_bytes", "allocations", "frees")
_NOWHERE = CodeLocation("", 0)
_COUNTS = ("failures", "failed_bytes", "foreign_frees")


class MemoryRows:
    """Writes rows of raw_allocations and raw_memory_seconds."""

    def __init__(self, kernel: KernelSide, sink: Sink, traced_processes: TracedProcesses) -> None:
        self._reader = AllocationReader(kernel.maps, kernel.layouts)
        self._sink, self._traced_processes = sink, traced_processes
        self._has_returns = kernel.mode is not ProbeMode.ENTRY_ONLY
        self._is_suspended = not self._has_returns
        self._unseen: set[int] = set()  # slots of processes that called while untraced

    def suspend(self, *, is_suspended: bool) -> None:
        """Sets whether allocations and frees are untraced from now on: then memory in use is not known."""
        self._is_suspended = is_suspended or not self._has_returns

    def write(self, period: Period) -> None:
        """Writes the changes of a second."""
        if self._is_suspended:
            self._unseen.update(traced_process.slot for traced_process in self._traced_processes)
        found = ((self._traced_processes.at(site.slot), site) for site in self._reader.read_sites(period.elapsed_s))
        self._write_sites(
            [(traced_process, site) for traced_process, site in found if traced_process and site.op in BY_ID], period
        )
        levels = self._reader.read_levels(period.elapsed_s, frozenset(self._unseen))
        owned = ((self._traced_processes.at(level.slot), level) for level in levels)
        self._write_levels([(traced_process, level) for traced_process, level in owned if traced_process], period)

    def forget(self, slot: int) -> None:
        """Forgets a slot whose process has ended."""
        self._reader.forget(slot)
        self._unseen.discard(slot)

    def _write_sites(self, sites: list[tuple[TracedProcess, SiteGrowth]], period: Period) -> None:
        places = [
            _NOWHERE if site.is_over else traced_process.callers.place(site.caller) for traced_process, site in sites
        ]
        ops = [BY_ID[site.op] for _, site in sites]
        hashes = [
            stack_hash(traced_process.number, site.python_stack, site.native_stack) for traced_process, site in sites
        ]
        rows = tables.ALLOCATIONS.rows(
            len(sites),
            session=self._sink.session,
            **period.columns(),
            process=[traced_process.number for traced_process, _ in sites],
            source=[int(op.source) for op in ops],
            op=[op.code for op in ops],
            caller=np.array([site.caller for _, site in sites], np.uint64),
            library=[self._sink.intern(place.library) if place.library else 0 for place in places],
            offset=[place.offset if place.library else 0 for place in places],
            memory_kind=[int(op.memory or 0) for op in ops],
            stack_hash=hashes,
            **{name: [getattr(site, name) for _, site in sites] for name in (*_COLUMNS, *_COUNTS)},
        )
        self._sink.append(tables.ALLOCATIONS, rows)

    def _write_levels(self, levels: list[tuple[TracedProcess, MemoryLevel]], period: Period) -> None:
        rows = tables.MEMORY_SECONDS.rows(
            len(levels),
            session=self._sink.session,
            **period.columns(),
            process=[traced_process.number for traced_process, _ in levels],
            memory_kind=[int(level.kind) for _, level in levels],
            live_bytes=[level.live_bytes for _, level in levels],
            live_count=[level.live_count for _, level in levels],
            peak_bytes=[level.peak_bytes for _, level in levels],
            unpaired=[level.unpaired for _, level in levels],
        )
        self._sink.append(tables.MEMORY_SECONDS, rows)
