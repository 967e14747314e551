"""What tracing costs is charged to the thread that paid most, and what is not traced any more is estimated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingero.attach.groups import Coverage, Group, group_of
from ingero.attach.objects import object_path
from ingero.capture.budget.levels import Level, Load, coverages
from ingero.capture.budget.overhead import LoadEstimate, OverheadMeter
from ingero.capture.budget.trap_cost import TrapCosts
from ingero.capture.sums.cells import CellGrowth
from ingero.decode.btf import btf_of
from ingero.ops import BY_NAME

COSTS = TrapCosts(full_ns=1000, nested_ns=600, counted_ns=500, suspended_ns=400)
SECOND_NS = 1_000_000_000

Array = np.ndarray[Any, np.dtype[Any]]


def dump(second: int, *hits: int, slot: int = 3) -> Array:
    """Threads 100, 101 ... of one process after so many seconds, with their hits so far."""
    threads = np.zeros(len(hits), btf_of(object_path("layouts")).dtype("thread_dump"))
    threads["tid"] = np.arange(100, 100 + len(hits))
    threads["process_slot"], threads["created_ns"] = slot, SECOND_NS
    threads["now_ns"], threads["hits"] = (second + 1) * SECOND_NS, hits
    return threads


def cell(name: str, *, timed: int = 0, untimed: int = 0, nested: int = 0, slot: int = 3) -> CellGrowth:
    growth = np.zeros(1, btf_of(object_path("layouts")).dtype("cell"))[0]
    growth["count"], growth["nested"] = timed + untimed, nested
    growth["histogram"][40] = timed
    return CellGrowth(
        slot=slot,
        op=BY_NAME[name].id,
        caller=1,
        growth=growth,
        row=0,
        max_ns=0,
        histogram=growth["histogram"],
        untimed=untimed,
    )


def test_each_kind_of_entry_has_its_cost() -> None:
    cells = [
        cell("cudaLaunchKernel", timed=1000),
        cell("cuLaunchKernel", nested=1000),
        cell("cuEventRecord", untimed=500),
    ]
    found = OverheadMeter().read(dump(1, 2500), cells, COSTS)
    assert found.ratio == pytest.approx((1000 * 1000 + 1000 * 600 + 500 * 500) / SECOND_NS)
    assert found.hits_per_s == 2500


def test_entries_that_no_cell_counted_were_passed_over() -> None:
    found = OverheadMeter().read(dump(1, 3000), [cell("cudaFree", timed=1000)], COSTS)
    assert found.ratio == pytest.approx((1000 * 1000 + 2000 * 400) / SECOND_NS)


def test_the_thread_that_pays_most_is_named() -> None:
    found = OverheadMeter().read(dump(1, 100, 900), [cell("cudaFree", timed=1000)], COSTS)
    assert (found.tid, found.hits_per_s) == (101, 900)
    assert found.seen.hits[Group.MEMORY] == pytest.approx(900)


def test_only_what_was_added_since_the_last_reading_counts() -> None:
    meter = OverheadMeter()
    meter.read(dump(1, 5000), [cell("cudaFree", timed=5000)], COSTS)
    assert meter.read(dump(2, 5100), [cell("cudaFree", timed=100)], COSTS).hits_per_s == 100


def test_a_look_between_two_readings_is_no_reading() -> None:
    meter = OverheadMeter()
    meter.read(dump(1, 5000, 70), [], COSTS)
    assert meter.most_hits(dump(2, 5100, 800)) == 730
    assert meter.most_hits(dump(2, 5900, 800)) == 900
    assert meter.read(dump(3, 6000, 800), [], COSTS).hits_per_s == 500


def test_a_thread_that_has_come_since_the_last_reading_counts_from_its_beginning() -> None:
    meter = OverheadMeter()
    meter.read(dump(1, 5000), [], COSTS)
    assert meter.most_hits(dump(2, 5000, 60)) == 60


def test_processes_are_told_apart() -> None:
    threads = np.concatenate([dump(1, 1000, slot=1), dump(1, 900, slot=2)])
    cells = [cell("cuLaunchKernel", untimed=1000, slot=1), cell("cudaFree", timed=900, slot=2)]
    assert OverheadMeter().read(threads, cells, COSTS).ratio == pytest.approx(900 * 1000 / SECOND_NS)


def test_without_threads_nothing_costs() -> None:
    assert OverheadMeter().read(dump(1), [], COSTS).ratio == 0


def seen(**hits: float) -> Load:
    return Load(hits={Group[name]: rate for name, rate in hits.items()}, nested_ratio={})


def test_the_runtimes_launches_follow_the_drivers() -> None:
    estimate = LoadEstimate()
    estimate.update(seen(RUNTIME_LAUNCHES=900, DRIVER_LAUNCHES=1000, REST=10), coverages(frozenset()))
    found = estimate.update(seen(DRIVER_LAUNCHES=100, REST=10), coverages(frozenset({Level.LAUNCHES_AT_DRIVER})))
    assert found.hits[Group.RUNTIME_LAUNCHES] == pytest.approx(90)


def test_what_is_not_traced_at_all_follows_what_is() -> None:
    estimate = LoadEstimate()
    estimate.update(seen(RUNTIME_LAUNCHES=900, DRIVER_LAUNCHES=900, REST=10), coverages(frozenset()))
    left = coverages(frozenset({Level.LAUNCHES_OFF}))
    assert estimate.update(seen(REST=5), left).hits[Group.DRIVER_LAUNCHES] == pytest.approx(450)
    assert estimate.update(seen(REST=0), left).hits[Group.DRIVER_LAUNCHES] == 0


def test_with_nothing_to_follow_the_last_rate_is_kept() -> None:
    estimate = LoadEstimate()
    estimate.update(seen(MEMORY=900), coverages(frozenset()))
    assert estimate.update(seen(), coverages(frozenset({Level.MEMORY_OFF}))).hits[Group.MEMORY] == 900


def test_blocking_calls_graphs_and_collectives_belong_to_the_group_that_stays() -> None:
    names = ("cudaMemcpy", "cudaStreamSynchronize", "cudaGraphLaunch", "ncclAllReduce", "cuModuleLoad")
    assert {group_of(BY_NAME[name]) for name in names} == {Group.REST}
    assert coverages(frozenset(Level))[Group.REST] is Coverage.FULL
