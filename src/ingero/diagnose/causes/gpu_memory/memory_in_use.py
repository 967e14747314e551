"""GPU memory: which code lines hold how much of it, and how full the GPUs were."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.process_gpus import gpu_of_ordinal
from ingero.diagnose.findings import CodeLine, Culprit
from ingero.ops import MemoryKind
from ingero.store.machine import GpuUse
from ingero.store.records import MemorySite, Process, Window
from ingero.units import format_bytes

Array = np.ndarray[Any, np.dtype[Any]]

GPU_MEMORY_KINDS = (MemoryKind.DEVICE, MemoryKind.MANAGED, MemoryKind.MAPPED)  # pinned memory is the host's
MAX_SAMPLE_DISTANCE_NS = 2_500_000_000  # the driver is asked each second


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeMemory:
    """The driver's samples of one GPU just before and just after a time range."""

    before: GpuUse
    after: GpuUse

    @property
    def used_ratio(self) -> float:
        """How full the GPU was before (0-1)."""
        return (self.before.memory_used_bytes or 0) / max(self.before.memory_total_bytes or 0, 1)

    @property
    def free_bytes(self) -> int:
        """The smaller of the free memory before and after."""
        return min(free_bytes(self.before), free_bytes(self.after))

    @property
    def moved_bytes(self) -> int:
        """Difference in free memory between before and after."""
        return abs(free_bytes(self.before) - free_bytes(self.after))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """Memory that one operation's calls from one line hold at the end of a window, and its changes.

    line: None where no stack has one; then all calls from the same caller are grouped.
    """

    name: str
    line: CodeLine | None
    library: str
    end_bytes: int
    growth_bytes: int
    growth_count: int
    allocations: int
    allocated_bytes: int
    freed_bytes: int

    @property
    def place(self) -> str:
        """The line or library, for people."""
        return str(self.line) if self.line else self.library or "an unknown caller"


SiteKey = tuple[int, int, int, CodeLine | None]


# The GPU


def gpu_of(evidence: Evidence, process: Process) -> str:
    """The UUID of the only GPU on which a process has memory; "" where unknown."""
    used = evidence.gpus_of_pids.get(process.pid, set())
    if len(used) > 1:
        return ""
    return gpu_of_ordinal(evidence, process, 0) or ""


def memory_bytes(evidence: Evidence, uuid: str) -> int:
    """Total memory of a GPU; 0 where the driver was not asked."""
    return max(
        (sample.memory_total_bytes or 0 for sample in evidence.gpu_samples if uuid and sample.uuid == uuid), default=0
    )


def used_ratio(evidence: Evidence, uuid: str, window: Window) -> float:
    """How full a GPU was on average in a window (0-1); 0 where the driver was not asked."""
    samples = [sample for sample in evidence.gpu_samples if sample.uuid == uuid and _has_memory(sample)]
    used = [
        (sample.memory_used_bytes or 0) / max(sample.memory_total_bytes or 0, 1)
        for sample in samples
        if window.begin_ns <= sample.time_ns < window.end_ns
    ]
    return sum(used) / len(used) if used else 0.0


def free_at_end(evidence: Evidence, uuid: str) -> int | None:
    """Free bytes in a GPU's newest sample of the window; None where no sample reports it."""
    samples = [sample for sample in evidence.gpu_samples if sample.uuid == uuid and _has_memory(sample)]
    return free_bytes(samples[-1]) if samples else None


def free_memory_around(evidence: Evidence, uuid: str, begin_ns: int, end_ns: int) -> FreeMemory | None:
    """Samples just before and after a time range; None unless the driver was asked shortly before and after."""
    samples = evidence.gpu_samples
    first = bisect_left(samples, begin_ns - MAX_SAMPLE_DISTANCE_NS, key=lambda sample: sample.time_ns)
    last = bisect_left(samples, end_ns + MAX_SAMPLE_DISTANCE_NS, key=lambda sample: sample.time_ns)
    of_gpu = [sample for sample in samples[first:last] if sample.uuid == uuid and _has_memory(sample)]
    before = [sample for sample in of_gpu if sample.time_ns <= begin_ns]
    after = [sample for sample in of_gpu if sample.time_ns >= end_ns]
    return FreeMemory(before=before[-1], after=after[0]) if before and after else None


def other_users_of_gpu(evidence: Evidence, process: Process, at_ns: int) -> tuple[Culprit, ...]:
    """Other processes that held memory on the process's GPU in the last sample, most first, without its family.

    The bytes are in the name: a culprit's time does not matter here.
    """
    uuid = gpu_of(evidence, process)
    samples = [sample for sample in evidence.gpu_samples if sample.uuid == uuid and sample.time_ns <= at_ns]
    family = evidence.family(process.process)
    users = [(pid, used or 0) for pid, used in (samples[-1].processes if samples else ()) if pid not in family]
    return tuple(
        Culprit(pid=pid, name=f"{evidence.name_of_pid(pid) or 'a process'} with {format_bytes(used)}")
        for pid, used in sorted(users, key=lambda one: -one[1])
    )


def _has_memory(sample: GpuUse) -> bool:
    return sample.memory_total_bytes is not None and sample.memory_used_bytes is not None


def free_bytes(sample: GpuUse) -> int:
    """Free memory in a sample that reports it."""
    return (sample.memory_total_bytes or 0) - (sample.memory_used_bytes or 0)


# Who holds it


def held_by_place(evidence: Evidence, window: Window, process: int) -> dict[SiteKey, HeldMemory]:
    """GPU memory held, by call and line.

    Calls without a recorded stack count to the line of their caller, if all its recorded calls are at the same line.
    """
    kinds = {kind.name.lower() for kind in GPU_MEMORY_KINDS}
    sites = [site for site in evidence.reader.memory_sites(window, process=process) if site.memory_kind in kinds]
    evidence.stacks.read(site.stack_hash for site in sites)
    lines: dict[tuple[int, int, int], set[CodeLine]] = defaultdict(set)
    for site in sites:
        if line := evidence.own_line(site.stack_hash):
            lines[site.source, site.op, site.caller].add(line)
    groups: dict[SiteKey, list[MemorySite]] = defaultdict(list)
    for site in sites:
        known = lines[site.source, site.op, site.caller]
        line = evidence.own_line(site.stack_hash) or (next(iter(known)) if len(known) == 1 else None)
        groups[site.source, site.op, site.caller, line].append(site)
    return {place: _held_by_sites(place, group) for place, group in groups.items()}


def _held_by_sites(place: SiteKey, sites: list[MemorySite]) -> HeldMemory:
    return HeldMemory(
        name=sites[0].name,
        line=place[3],
        library=sites[0].library,
        end_bytes=sum(site.end_bytes for site in sites),
        growth_bytes=sum(site.growth_bytes for site in sites),
        growth_count=sum(site.end_count - site.begin_count for site in sites),
        allocations=sum(site.allocations for site in sites),
        allocated_bytes=sum(site.allocated_bytes for site in sites),
        freed_bytes=sum(site.freed_bytes for site in sites),
    )


def largest_holders(evidence: Evidence, window: Window, process: int, limit: int = 3) -> list[HeldMemory]:
    """The lines that hold the most at the end of a window."""
    if not evidence.reader.is_recorded("raw_allocations"):
        return []
    holders = held_by_place(evidence, window, process).values()
    return sorted((holder for holder in holders if holder.end_bytes), key=lambda holder: -holder.end_bytes)[:limit]


def memory_levels(evidence: Evidence, kinds: Iterable[MemoryKind]) -> Array:
    """Recorded levels of these kinds of memory, all processes, ascending in time."""
    rows = evidence.reader.memory_seconds(evidence.window)
    chosen: Array = rows[np.isin(rows["memory_kind"], [int(kind) for kind in kinds])]
    return chosen


def unpaired_calls(rows: Array, window: Window) -> int:
    """Calls in the window that could not be paired and are missing in the levels; rows: of one process."""
    before = rows["unpaired"][rows["start_ns"] < window.begin_ns]
    return int(rows["unpaired"][rows["start_ns"] < window.end_ns].max(initial=0)) - int(before.max(initial=0))
