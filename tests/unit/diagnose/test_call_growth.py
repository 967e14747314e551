"""Growth of calls per sync interval against the reference."""

from __future__ import annotations

from ingero.diagnose.cases.call_growth import CallGrowth
from ingero.diagnose.cases.case import OpChange
from ingero.ops import OPS
from ingero.store.records import OpShare

LAUNCH = next(op for op in OPS if op.name == "cudaLaunchKernel")


def launches(count: float, us: float, *, baseline_count: float, baseline_us: float) -> OpChange:
    totals = OpShare(
        source=int(LAUNCH.source),
        op=LAUNCH.code,
        name=LAUNCH.name,
        count=count,
        untimed=0.0,
        sum_ns=count * us * 1e3,
        held_up_ns=0.0,
        bytes=0.0,
        errors=0.0,
    )
    return OpChange(
        totals=totals,
        count=count,
        baseline_count=baseline_count,
        timed=count,
        baseline_timed=baseline_count,
        ns=count * us * 1e3,
        baseline_ns=baseline_count * baseline_us * 1e3,
        size_bytes=0.0,
        baseline_bytes=0.0,
    )


def test_more_of_large_batches_is_no_growth_of_their_launches() -> None:
    mixed = launches(40, 5.0, baseline_count=10, baseline_us=5.0)
    assert CallGrowth((mixed,), 100, is_as_many=True).grown_ns == 0
    assert CallGrowth((mixed,), 100).grown_ns == 100 * 30 * 5_000


def test_longer_launches_grow_by_what_each_takes_longer() -> None:
    slower = launches(40, 8.0, baseline_count=10, baseline_us=5.0)
    assert CallGrowth((slower,), 100, is_as_many=True).grown_ns == 100 * 40 * 3_000


def test_launches_without_a_reference_are_not_longer() -> None:
    assert CallGrowth((launches(40, 5.0, baseline_count=0, baseline_us=0),), 100, is_as_many=True).grown_ns == 0
