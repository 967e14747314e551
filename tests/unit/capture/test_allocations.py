"""Sums of allocations become growth and levels per reading, and what ended leaves nothing behind."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ingero.attach.kernel_side import SLOT_SHIFT
from ingero.attach.objects import object_path
from ingero.capture.sums.allocations import LEVEL_PERIOD_S, AllocationReader, MemoryLevel
from ingero.decode.btf import btf_of
from ingero.ops import BY_NAME, MemoryKind

LAYOUTS = btf_of(object_path("layouts"))
PROCESSES = 4
KINDS = 8
MALLOC = BY_NAME["cudaMalloc"].id


class SharedArray:
    """Memory as a mapped BPF array shows it; both sides see what the other writes."""

    def __init__(self, layout: str, entries: int) -> None:
        self.max_entries = entries
        dtype = LAYOUTS.dtype(layout)
        self._memory = mmap.mmap(-1, entries * dtype.itemsize)
        self.values: np.ndarray[Any, Any] = np.frombuffer(self._memory, dtype)

    def memory(self) -> mmap.mmap:
        return self._memory


class Table:
    """A hash of keys, as the reader uses it."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def batches(self) -> Iterator[tuple[bytes, bytes]]:
        yield b"".join(self.keys), b""

    def delete(self, key: bytes) -> None:
        self.keys.remove(key)

    def add(self, slot: int, address: int) -> None:
        key = np.zeros(1, LAYOUTS.dtype("allocation_key"))
        key["address"], key["owner"] = address, slot << SLOT_SHIFT
        self.keys.append(key.tobytes())


class Kernel:
    """The maps that the reader reads."""

    def __init__(self) -> None:
        self.sites = SharedArray("allocation_site", 64)
        self.totals = SharedArray("memory_total", PROCESSES * KINDS)
        self.processes = SharedArray("process", PROCESSES)
        self.table = Table()
        maps = {"allocation_sites": self.sites, "memory_totals": self.totals, "processes": self.processes}
        self.reader = AllocationReader(maps | {"allocations": self.table}, LAYOUTS)  # type: ignore[arg-type]  # as used

    def add(self, at: int, *, slot: int = 1, execs: int = 0, caller: int = 0x1000, **sums: int) -> None:
        """What the kernel adds to a site."""
        site = self.sites.values[at]
        site["key"], site["op"], site["caller"], site["execs"] = (
            slot << SLOT_SHIFT | 1 << SLOT_SHIFT - 1 | at,
            MALLOC,
            caller,
            execs,
        )
        for name, value in sums.items():
            site[name] += np.uint64(value)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def test_a_reading_tells_the_growth_and_the_level(kernel: Kernel) -> None:
    kernel.add(5, allocated_bytes=700, allocations=7)
    kernel.reader.read_sites(1.0)
    kernel.add(5, allocated_bytes=300, allocations=3, freed_bytes=500, frees=5)
    (grown,) = kernel.reader.read_sites(1.0)
    assert (grown.slot, grown.op, grown.caller) == (1, MALLOC, 0x1000)
    assert (grown.allocated_bytes, grown.allocations, grown.freed_bytes, grown.frees) == (300, 3, 500, 5)
    assert (grown.live_bytes, grown.live_count) == (500, 5)


def test_a_sum_that_begins_anew_has_grown(kernel: Kernel) -> None:
    kernel.add(5, failures=1 << 20, failed_bytes=(1 << 64) - 100)
    kernel.reader.read_sites(1.0)
    kernel.sites.values[5]["failed_bytes"] = 200
    (grown,) = kernel.reader.read_sites(1.0)
    assert grown.failed_bytes == 300


def test_a_site_that_does_not_change_is_told_once_a_minute_as_long_as_it_holds_something(kernel: Kernel) -> None:
    kernel.add(5, allocated_bytes=700, allocations=7)
    kernel.add(6, allocated_bytes=700, allocations=7, freed_bytes=700, frees=7)
    assert len(kernel.reader.read_sites(1.0)) == 2
    assert kernel.reader.read_sites(1.0) == []
    (level,) = kernel.reader.read_sites(LEVEL_PERIOD_S)
    assert (level.live_bytes, level.allocated_bytes) == (700, 0)


def test_a_site_that_is_just_being_claimed_is_left_for_the_next_reading(kernel: Kernel) -> None:
    kernel.sites.values[3]["key"] = 1 << SLOT_SHIFT
    assert kernel.reader.read_sites(1.0) == []


def test_the_sites_of_a_program_hold_nothing_once_the_process_has_become_another(kernel: Kernel) -> None:
    kernel.add(5, allocated_bytes=700, allocations=7)
    kernel.reader.read_sites(1.0)
    kernel.processes.values[1]["execs"] = 1
    kernel.add(2, execs=1, allocated_bytes=50, allocations=1)
    over, new = kernel.reader.read_sites(1.0)
    assert (over.is_over, over.live_bytes, over.live_count, over.freed_bytes) == (True, 0, 0, 0)
    assert (new.is_over, new.live_bytes) == (False, 50)
    assert not kernel.sites.values[5]["key"]


def test_levels_of_processes_are_told_where_they_changed(kernel: Kernel) -> None:
    place = 1 * KINDS + MemoryKind.PINNED
    kernel.totals.values[place] = (900, 3, 1200)
    assert kernel.reader.read_levels(1.0, frozenset()) == [
        MemoryLevel(slot=1, kind=MemoryKind.PINNED, live_bytes=900, live_count=3, peak_bytes=1200, unpaired=0)
    ]
    assert kernel.reader.read_levels(1.0, frozenset()) == []
    kernel.totals.values[place] = (0, 0, 1200)
    assert [level.live_bytes for level in kernel.reader.read_levels(1.0, frozenset())] == [0]


def test_calls_that_do_not_count_are_told_even_of_a_process_that_holds_nothing(kernel: Kernel) -> None:
    kernel.processes.values[2]["unpaired"] = 4
    (level,) = kernel.reader.read_levels(1.0, frozenset())
    assert (level.slot, level.kind, level.live_bytes, level.unpaired) == (2, MemoryKind.DEVICE, 0, 4)
    assert kernel.reader.read_levels(1.0, frozenset()) == []


def test_a_process_that_nobody_looked_at_has_calls_that_do_not_count(kernel: Kernel) -> None:
    (level,) = kernel.reader.read_levels(1.0, frozenset({3}))
    assert (level.slot, level.unpaired) == (3, 1)


def test_what_an_ended_process_held_is_taken_out_and_nothing_of_the_others(kernel: Kernel) -> None:
    for slot in (1, 2):
        kernel.add(slot, slot=slot, allocated_bytes=700, allocations=7)
        kernel.totals.values[slot * KINDS + MemoryKind.DEVICE] = (700, 7, 700)
        kernel.table.add(slot, 0x7000)
    kernel.reader.read_sites(1.0)
    kernel.reader.read_levels(1.0, frozenset())
    kernel.reader.forget(1)
    assert [int(key) >> SLOT_SHIFT for key in kernel.sites.values["key"] if key] == [2]
    assert np.flatnonzero(kernel.totals.values["peak_bytes"]).tolist() == [2 * KINDS + MemoryKind.DEVICE]
    assert [np.frombuffer(key, np.uint64)[1] >> np.uint64(SLOT_SHIFT) for key in kernel.table.keys] == [2]
    kernel.add(1, slot=1, allocated_bytes=5, allocations=1)
    (grown,) = kernel.reader.read_sites(1.0)
    assert (grown.slot, grown.live_bytes, grown.allocated_bytes) == (1, 5, 5)
