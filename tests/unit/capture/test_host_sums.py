"""Exact sums of host events become growth per reading, also when the host events were loaded anew meanwhile."""

from __future__ import annotations

import mmap
from typing import Any, cast

import numpy as np
import pytest

from ingero.attach.libbpf import Map
from ingero.attach.objects import object_path
from ingero.capture.sums.host_sums import HostSum, HostSumReader
from ingero.decode.btf import btf_of
from ingero.ops import HostOp, IoOp, Source

LAYOUTS = btf_of(object_path("layouts"))
TOTAL = LAYOUTS.dtype("host_total")
KINDS = LAYOUTS.enum("host_kind")


class Totals:
    """A mapped array as the kernel side has it."""

    max_entries = KINDS["HOST_KINDS"]

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self.max_entries * TOTAL.itemsize)
        self.values: np.ndarray[Any, Any] = np.frombuffer(self._memory, TOTAL)

    def memory(self) -> mmap.mmap:
        return self._memory


@pytest.fixture
def processes() -> np.ndarray[Any, Any]:
    return np.zeros(4, LAYOUTS.dtype("process"))


@pytest.fixture
def maps() -> dict[str, Map]:
    return {"host_totals": cast(Map, Totals())}


@pytest.fixture
def reader(maps: dict[str, Map], processes: np.ndarray[Any, Any]) -> HostSumReader:
    return HostSumReader(maps, LAYOUTS, processes)


def test_the_growth_of_each_kind_is_read_once(maps: dict[str, Map], reader: HostSumReader) -> None:
    row = cast(Totals, maps["host_totals"]).values[KINDS["HOST_BLOCK_WRITE"]]
    row["traced_count"], row["traced_bytes"], row["other_count"] = 3, 4096, 7
    expected = HostSum(source=Source.IO, op=IoOp.WRITE, count=3, size_bytes=4096, other_count=7)
    assert reader.read(0) == [expected]
    assert reader.read(0) == []


def test_totals_loaded_anew_begin_at_zero(maps: dict[str, Map], reader: HostSumReader) -> None:
    cast(Totals, maps["host_totals"]).values["traced_count"][KINDS["HOST_BLOCK_READ"]] = 9
    reader.read(0)
    del maps["host_totals"]
    assert reader.read(0) == []
    maps["host_totals"] = cast(Map, Totals())
    cast(Totals, maps["host_totals"]).values["traced_count"][KINDS["HOST_BLOCK_READ"]] = 2
    assert [one.count for one in reader.read(0)] == [2]


def test_pages_of_a_slot_that_changed_hands_are_not_subtracted(
    reader: HostSumReader, processes: np.ndarray[Any, Any]
) -> None:
    processes["page_allocs"][1], processes["page_alloc_bytes"][1] = 10, 40960
    assert reader.read(0) == [HostSum(source=Source.HOST, op=HostOp.PAGE_ALLOC, count=10, size_bytes=40960)]
    reader.forget(1)
    processes["page_allocs"][1], processes["page_alloc_bytes"][1] = 4, 16384
    assert [one.count for one in reader.read(0)] == [4]


def test_major_faults_are_a_sum_like_the_others(reader: HostSumReader) -> None:
    assert reader.read(3) == [HostSum(source=Source.HOST, op=HostOp.MAJOR_FAULT, count=3)]
    assert reader.read(0) == []
