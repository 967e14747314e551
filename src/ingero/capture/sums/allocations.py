"""Reads once a second the GPU memory allocated and freed by each call site, and in use by each process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.attach.kernel_side import SLOT_SHIFT
from ingero.attach.libbpf import Map
from ingero.decode.btf import Btf
from ingero.ops import MemoryKind

LEVEL_PERIOD_S = 60.0  # so often a site that does not change says again what it holds, for readers of a part

_SLOT_SHIFT = np.uint64(SLOT_SHIFT)
_WRAP = 1 << 64  # of a sum in the kernel, which takes a million requests of 16 TB and more
_SUMS = ("freed_bytes", "frees", "allocated_bytes", "allocations", "failures", "failed_bytes", "foreign_frees")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteGrowth:
    """Allocations of one call site since the last reading, and its memory in use now.

    python_stack, native_stack: as a recorded call has them; 0 for the calls without a record. peak_bytes: since the
    program began or was first traced. is_over: the process has become another program, to which `caller` means nothing.
    """

    slot: int
    op: int
    caller: int
    python_stack: int
    native_stack: int
    live_bytes: int
    live_count: int
    peak_bytes: int
    is_over: bool = False
    allocated_bytes: int = 0
    freed_bytes: int = 0
    allocations: int = 0
    frees: int = 0
    failures: int = 0
    failed_bytes: int = 0
    foreign_frees: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLevel:
    """Memory of one kind in use by a process. unpaired: allocations and frees not counted in it."""

    slot: int
    kind: MemoryKind
    live_bytes: int
    live_count: int
    peak_bytes: int
    unpaired: int


class AllocationReader:
    """Reads the kernel's tables of live allocations, of their call sites, and of their processes."""

    def __init__(self, maps: dict[str, Map], layouts: Btf) -> None:
        sites, totals, processes = maps["allocation_sites"], maps["memory_totals"], maps["processes"]
        self._allocations, self._key = maps["allocations"], layouts.dtype("allocation_key")
        self._sites: Array = np.frombuffer(sites.memory(), layouts.dtype("allocation_site"), sites.max_entries)
        self._before = np.zeros(sites.max_entries, [(name, np.uint64) for name in _SUMS])
        self._age_s = np.zeros(sites.max_entries)  # since the site was last reported
        totals_type = layouts.dtype("memory_total")
        self._totals: Array = np.frombuffer(totals.memory(), totals_type, totals.max_entries)
        self._kinds = totals.max_entries // processes.max_entries
        self._reported = np.zeros(totals.max_entries, totals_type)
        self._reported_unpaired = np.zeros(processes.max_entries, np.uint64)
        self._level_age_s = np.zeros(totals.max_entries)
        self._processes: Array = np.frombuffer(processes.memory(), layouts.dtype("process"), processes.max_entries)
        self._owners: set[int] = set()  # slots that may have something in `allocations`

    def read_sites(self, elapsed_s: float) -> list[SiteGrowth]:
        """The call sites that changed since the last reading, `elapsed_s` ago, and those whose level is due."""
        used = np.flatnonzero(self._sites["op"] != 0)  # of a copy: numpy raises if the kernel adds one while it counts
        now = np.zeros(len(used), self._before.dtype)
        for name in _SUMS:  # frees first: what they gave back is then always among what was allocated
            now[name] = self._sites[name][used]
        sites, before = self._sites[used], self._before[used]
        slots = (sites["key"] >> _SLOT_SHIFT).astype(np.int64)
        is_over = sites["execs"] != self._processes["execs"][slots]  # a site of the program before
        is_live = ~is_over & (now["allocations"] != now["frees"])
        self._age_s[used] += elapsed_s
        is_due = is_live & (self._age_s[used] >= LEVEL_PERIOD_S)
        changed = np.flatnonzero((now != before) | is_due | is_over)
        changed = changed[
            np.argsort(~is_over[changed], kind="stable")
        ]  # the new program may call from the same address
        self._before[used], self._age_s[used[changed]] = now, 0
        self._owners.update(slots[changed].tolist())
        growth = [_growth(sites[i], now[i], before[i], is_over=bool(is_over[i])) for i in changed.tolist()]
        self._clear(used[is_over])
        return growth

    def read_levels(self, elapsed_s: float, unseen: frozenset[int]) -> list[MemoryLevel]:
        """Memory in use by process and kind, if changed or due. unseen: slots whose calls were not traced."""
        totals, unpaired = self._totals.copy(), self._processes["unpaired"].copy()
        unpaired[list(unseen)] += np.uint64(1)
        is_known = (totals["peak_bytes"] > 0).reshape(-1, self._kinds)
        is_known[:, MemoryKind.DEVICE] |= unpaired > 0  # of a process that holds nothing it must be said, too
        is_changed = (totals != self._reported).reshape(-1, self._kinds)
        is_changed |= is_known & (unpaired != self._reported_unpaired)[:, np.newaxis]
        self._level_age_s += elapsed_s
        is_due = (totals["live_count"] > 0) & (self._level_age_s >= LEVEL_PERIOD_S)
        changed = np.flatnonzero(is_changed.ravel() | is_due)
        self._reported, self._reported_unpaired = totals, unpaired
        self._level_age_s[changed] = 0
        return [self._level(index) for index in changed.tolist()]

    def _level(self, index: int) -> MemoryLevel:
        slot, kind = divmod(index, self._kinds)
        total = self._reported[index]
        return MemoryLevel(
            slot=slot,
            kind=MemoryKind(kind),
            live_bytes=int(total["live_bytes"]),
            live_count=int(total["live_count"]),
            peak_bytes=int(total["peak_bytes"]),
            unpaired=int(self._reported_unpaired[slot]),
        )

    def forget(self, slot: int) -> None:
        """Frees what an ended process has left in the tables."""
        keys = self._sites["key"].copy()
        self._clear(np.flatnonzero((keys != 0) & (keys >> _SLOT_SHIFT == slot)))
        places = slice(slot * self._kinds, (slot + 1) * self._kinds)
        self._totals[places] = self._reported[places] = np.zeros(1, self._totals.dtype)[0]
        self._reported_unpaired[slot] = 0
        if slot in self._owners:
            self._owners.discard(slot)
            self._forget_allocations(slot)

    def _forget_allocations(self, slot: int) -> None:
        for batch, _ in self._allocations.batches():
            keys = np.frombuffer(batch, self._key)
            for key in keys[keys["owner"] >> _SLOT_SHIFT == slot]:
                self._allocations.delete(key.tobytes())

    def _clear(self, places: Array) -> None:
        names = [name for name in self._sites.dtype.names or () if name not in ("op", "key")]
        for name in (*names, "op", "key"):  # the key last: from then on the site is free
            self._sites[name][places] = 0
        self._before[places] = 0
        self._age_s[places] = 0


def _growth(site: np.void, now: np.void, before: np.void, *, is_over: bool) -> SiteGrowth:
    return SiteGrowth(
        slot=int(site["key"] >> _SLOT_SHIFT),
        op=int(site["op"]),
        caller=int(site["caller"]),
        python_stack=int(site["python_stack"]),
        native_stack=int(site["native_stack"]),
        peak_bytes=int(site["peak_bytes"]),
        live_bytes=0 if is_over else int(now["allocated_bytes"] - now["freed_bytes"]),
        live_count=0 if is_over else int(now["allocations"] - now["frees"]),
        is_over=is_over,
        **{name: (int(now[name]) - int(before[name])) % _WRAP for name in _SUMS},
    )
