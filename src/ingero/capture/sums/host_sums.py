"""Reads once a second the kernel's exact sums per kind of host event, recorded or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.attach.libbpf import Map
from ingero.capture.records.rows import HOST_OPS
from ingero.decode.btf import Btf
from ingero.ops import HostOp, Source

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSum:
    """Events of one operation since the last reading: of traced processes, and of all others (`other_`).

    duration_ns: summed; 0 for points in time.
    """

    source: Source
    op: int
    count: int
    size_bytes: int = 0
    duration_ns: int = 0
    other_count: int = 0
    other_bytes: int = 0
    other_ns: int = 0


class HostSumReader:
    """Reads map `host_totals`, the page allocations in `processes`, and the major faults of traced processes.

    maps: of the kernel side; `host_totals` comes and goes with the host events. processes: the mapped array.
    """

    def __init__(self, maps: Mapping[str, Map], layouts: Btf, processes: Array) -> None:
        self._maps, self._processes = maps, processes
        self._dtype = layouts.dtype("host_total")
        self._mapped: Map | None = None
        self._totals: Array = np.zeros(0, self._dtype)
        self._before: Array = self._totals
        self._pages_before: dict[int, tuple[int, int]] = {}

    def read(self, major_faults: int) -> list[HostSum]:
        """The sums that grew since the last reading. major_faults: of all traced processes meanwhile."""
        self._map_totals()
        now = self._totals.copy()
        before, self._before = self._before, now
        sums = [
            _host_sum(HOST_OPS[kind], now[kind], before[kind])
            for kind in np.flatnonzero(now != before).tolist()
            if kind in HOST_OPS
        ]
        faults = [HostSum(source=Source.HOST, op=HostOp.MAJOR_FAULT, count=major_faults)] if major_faults else []
        return [*sums, *self._page_allocations(), *faults]

    def forget(self, slot: int) -> None:
        """Forgets a slot whose process has ended."""
        self._pages_before.pop(slot, None)

    def _map_totals(self) -> None:
        """Maps `host_totals` again if host events were loaded again: they restart at 0."""
        current = self._maps.get("host_totals")
        if current is self._mapped:
            return
        self._mapped = current
        size = current.max_entries if current else 0
        self._totals = np.frombuffer(current.memory(), self._dtype, size) if current else np.zeros(0, self._dtype)
        self._before = np.zeros(size, self._dtype)

    def _page_allocations(self) -> list[HostSum]:
        count = size_bytes = 0
        for slot in np.flatnonzero(self._processes["page_allocs"]).tolist():
            process = self._processes[slot]
            now = int(process["page_allocs"]), int(process["page_alloc_bytes"])
            before = self._pages_before.get(slot, (0, 0))
            self._pages_before[slot] = now
            count, size_bytes = count + now[0] - before[0], size_bytes + now[1] - before[1]
        return [HostSum(source=Source.HOST, op=HostOp.PAGE_ALLOC, count=count, size_bytes=size_bytes)] if count else []


def lifecycle_sums(counts: Mapping[HostOp, int]) -> list[HostSum]:
    """Sums of starts, ends, kills and stops, which arrive as records."""
    return [HostSum(source=Source.HOST, op=op, count=count) for op, count in counts.items()]


def _host_sum(published: tuple[Source, int], now: np.void, before: np.void) -> HostSum:
    source, op = published

    def growth(name: str) -> int:
        return int(now[name]) - int(before[name])

    return HostSum(
        source=source,
        op=op,
        count=growth("traced_count"),
        size_bytes=growth("traced_bytes"),
        duration_ns=growth("traced_ns"),
        other_count=growth("other_count"),
        other_bytes=growth("other_bytes"),
        other_ns=growth("other_ns"),
    )
