"""Major faults per process, threads that have ended included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingero.attach.objects import object_path
from ingero.capture.sums.major_faults import MajorFaults
from ingero.decode.btf import btf_of

LAYOUTS = btf_of(object_path("layouts"))
SINCE_NS = 1000


@pytest.fixture
def processes() -> np.ndarray[Any, Any]:
    return np.zeros(4, LAYOUTS.dtype("process"))


@pytest.fixture
def faults(processes: np.ndarray[Any, Any]) -> MajorFaults:
    return MajorFaults(processes, SINCE_NS)


def threads(*counts: int, gone: int = 0, slot: int = 1) -> np.ndarray[Any, Any]:
    dump = np.zeros(len(counts), LAYOUTS.dtype("thread_dump"))
    dump["process_slot"], dump["major_faults"], dump["gone_major_faults"] = slot, counts, gone
    return dump


def test_what_a_process_had_before_tracing_does_not_count(faults: MajorFaults) -> None:
    assert faults.read(threads(100)) == {1: 0}
    assert faults.read(threads(103)) == {1: 3}


def test_what_a_process_born_while_tracing_has_at_first_sight_counts(
    faults: MajorFaults, processes: np.ndarray[Any, Any]
) -> None:
    processes["start_boottime_ns"][1] = SINCE_NS + 1
    assert faults.read(threads(7)) == {1: 7}


def test_faults_of_threads_that_come_and_go_within_a_second_count(faults: MajorFaults) -> None:
    faults.read(threads(10, 5))
    assert faults.read(threads(10, gone=5 + 4)) == {1: 4}


def test_a_thread_seen_both_alive_and_gone_is_made_up_for(faults: MajorFaults) -> None:
    faults.read(threads(10, 5))
    grown = [faults.read(dump)[1] for dump in (threads(10, 5, gone=5), threads(10, gone=5), threads(12, gone=6))]
    assert grown == [5, 0, 0]
    assert faults.read(threads(19, gone=6)) == {1: 5}  # 10 in all since the first reading


def test_the_next_process_in_a_slot_begins_anew(faults: MajorFaults) -> None:
    faults.read(threads(10))
    faults.forget(1)
    assert faults.read(threads(50)) == {1: 0}
