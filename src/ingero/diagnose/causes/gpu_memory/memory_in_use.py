"""GPU memory: which lines hold what of it, and how full the GPUs were."""

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

ON_DEVICE = (MemoryKind.DEVICE, MemoryKind.MANAGED, MemoryKind.MAPPED)  # pinned memory is the host's
SAMPLED_NS = 2_500_000_000  # the driver is asked each second


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the driver said of one GPU just before a moment and just after it."""

    before: GpuUse
    after: GpuUse

    @property
    def used_ratio(self) -> float:
        """How full it was before, of its memory."""
        return (self.before.memory_used_bytes or 0) / max(self.before.memory_total_bytes or 0, 1)

    @property
    def free_bytes(self) -> int:
        """The least that was free."""
        return min(free_bytes(self.before), free_bytes(self.after))

    @property
    def moved_bytes(self) -> int:
        """By how much the two differ: given back or taken meanwhile."""
        return abs(free_bytes(self.before) - free_bytes(self.after))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the calls of one operation from one line hold at the end of a window, and how that changed.

    line: None where no stack has one; then all calls of the caller are together.
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
        """Where, for texts."""
        return str(self.line) if self.line else self.library or "an unknown caller"


Place = tuple[int, int, int, CodeLine | None]


# The GPU


def gpu_of(evidence: Evidence, process: Process) -> str:
    """The uuid of the one GPU that a process has memory on; "" where that is not known."""
    used = evidence.gpus_of_pids.get(process.pid, set())
    if len(used) > 1:
        return ""
    return gpu_of_ordinal(evidence, process, 0) or ""


def memory_bytes(evidence: Evidence, uuid: str) -> int:
    """The memory of a GPU; 0 where the driver was not asked."""
    return max((one.memory_total_bytes or 0 for one in evidence.gpu_samples if uuid and one.uuid == uuid), default=0)


def used_ratio(evidence: Evidence, uuid: str, window: Window) -> float:
    """How full a GPU was on average in a window; 0 where the driver was not asked."""
    mine = [one for one in evidence.gpu_samples if one.uuid == uuid and _is_told(one)]
    used = [
        (one.memory_used_bytes or 0) / max(one.memory_total_bytes or 0, 1)
        for one in mine
        if window.begin_ns <= one.time_ns < window.end_ns
    ]
    return sum(used) / len(used) if used else 0.0


def free_at_end(evidence: Evidence, uuid: str) -> int | None:
    """What the newest sample of a GPU in the window says is free; None where none does."""
    mine = [one for one in evidence.gpu_samples if one.uuid == uuid and _is_told(one)]
    return free_bytes(mine[-1]) if mine else None


def room_at(evidence: Evidence, uuid: str, begin_ns: int, end_ns: int) -> Room | None:
    """What was free on both sides of a time range; None unless the driver was asked shortly before and after."""
    samples = evidence.gpu_samples
    first = bisect_left(samples, begin_ns - SAMPLED_NS, key=lambda one: one.time_ns)
    last = bisect_left(samples, end_ns + SAMPLED_NS, key=lambda one: one.time_ns)
    mine = [one for one in samples[first:last] if one.uuid == uuid and _is_told(one)]
    before = [one for one in mine if one.time_ns <= begin_ns]
    after = [one for one in mine if one.time_ns >= end_ns]
    return Room(before=before[-1], after=after[0]) if before and after else None


def others_on(evidence: Evidence, process: Process, at_ns: int) -> tuple[Culprit, ...]:
    """Who else held memory of the process's GPU when the driver was asked last, most first; its own family is left out.

    The bytes are in the name: a culprit's time is not what matters here.
    """
    uuid = gpu_of(evidence, process)
    mine = [one for one in evidence.gpu_samples if one.uuid == uuid and one.time_ns <= at_ns]
    family = evidence.family(process.process)
    found = [(pid, used or 0) for pid, used in (mine[-1].processes if mine else ()) if pid not in family]
    return tuple(
        Culprit(pid=pid, name=f"{evidence.name_of_pid(pid) or 'a process'} with {format_bytes(used)}")
        for pid, used in sorted(found, key=lambda one: -one[1])
    )


def _is_told(one: GpuUse) -> bool:
    return one.memory_total_bytes is not None and one.memory_used_bytes is not None


def free_bytes(one: GpuUse) -> int:
    """What nobody had, by a sample that tells it."""
    return (one.memory_total_bytes or 0) - (one.memory_used_bytes or 0)


# Who holds it


def held(evidence: Evidence, window: Window, process: int) -> dict[Place, Held]:
    """Memory of the GPU by call and line.

    Calls without a record are at the line of their caller if all that have one are at the same.
    """
    kinds = {kind.name.lower() for kind in ON_DEVICE}
    sites = [one for one in evidence.reader.memory_sites(window, process=process) if one.memory_kind in kinds]
    evidence.stacks.read(one.stack_hash for one in sites)
    lines: dict[tuple[int, int, int], set[CodeLine]] = defaultdict(set)
    for site in sites:
        if line := evidence.own_line(site.stack_hash):
            lines[site.source, site.op, site.caller].add(line)
    groups: dict[Place, list[MemorySite]] = defaultdict(list)
    for site in sites:
        known = lines[site.source, site.op, site.caller]
        line = evidence.own_line(site.stack_hash) or (next(iter(known)) if len(known) == 1 else None)
        groups[site.source, site.op, site.caller, line].append(site)
    return {place: _held(place, group) for place, group in groups.items()}


def _held(place: Place, sites: list[MemorySite]) -> Held:
    return Held(
        name=sites[0].name,
        line=place[3],
        library=sites[0].library,
        end_bytes=sum(one.end_bytes for one in sites),
        growth_bytes=sum(one.growth_bytes for one in sites),
        growth_count=sum(one.end_count - one.begin_count for one in sites),
        allocations=sum(one.allocations for one in sites),
        allocated_bytes=sum(one.allocated_bytes for one in sites),
        freed_bytes=sum(one.freed_bytes for one in sites),
    )


def largest_holders(evidence: Evidence, window: Window, process: int, limit: int = 3) -> list[Held]:
    """The lines that hold most at the end of a window."""
    if not evidence.reader.is_recorded("raw_allocations"):
        return []
    found = held(evidence, window, process).values()
    return sorted((one for one in found if one.end_bytes), key=lambda one: -one.end_bytes)[:limit]


def levels(evidence: Evidence, kinds: Iterable[MemoryKind]) -> Array:
    """The recorded levels of these kinds of memory, of every process, in order of time."""
    rows = evidence.reader.memory_seconds(evidence.window)
    chosen: Array = rows[np.isin(rows["memory_kind"], [int(kind) for kind in kinds])]
    return chosen


def unpaired(rows: Array, window: Window) -> int:
    """Calls in the window that do not count in the levels of their process, of the levels of one process."""
    before = rows["unpaired"][rows["start_ns"] < window.begin_ns]
    return int(rows["unpaired"][rows["start_ns"] < window.end_ns].max(initial=0)) - int(before.max(initial=0))
