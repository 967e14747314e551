"""gpu-throttled: a reason of the driver and a slowdown by just the ratio of the clocks; either alone is not enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

THERMAL = 0x20


def throttled(run: ScriptedRun, trainer: Actor, *, busy_ms: float, mhz: int, reasons: int) -> None:
    """Slower from QUIET_S on; the driver's samples say why."""
    run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=busy_ms))
    for second in range(1, int(LENGTH_S) + 1):
        is_slow = second > QUIET_S
        run.gpu(second - 0.01, mhz=mhz if is_slow else 1980, reasons=reasons if is_slow else 0)


def test_a_slowdown_by_the_ratio_of_the_clocks_is_throttling(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: throttled(run, trainer, busy_ms=12, mhz=990, reasons=THERMAL))
    assert causes(diagnosis) == ["gpu-throttled"]
    assert diagnosis.incidents[0].lost_ratio == pytest.approx(6 / 12.55, rel=0.03)
    assert "990 instead of 1980 MHz: thermal (software)" in diagnosis.incidents[0].summary


@pytest.mark.parametrize(
    ("busy_ms", "mhz", "reasons"),
    [(12, 1980, THERMAL), (12, 990, 0), (24, 1500, THERMAL), (6.7, 1980, THERMAL), (6.7, 1940, THERMAL)],
)
def test_otherwise_the_reason_is_not_known(tmp_path: Path, busy_ms: float, mhz: int, reasons: int) -> None:
    diagnosis = diagnosed(
        tmp_path, lambda run, trainer: throttled(run, trainer, busy_ms=busy_ms, mhz=mhz, reasons=reasons)
    )
    assert causes(diagnosis) == ["gpu-slower"]


def test_throttling_that_ends_between_two_samples_owns_the_time_until_then(tmp_path: Path) -> None:
    def until_the_middle_of_a_second(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, QUIET_S + 3.5, Step(busy_ms=12))
        run.train(trainer, QUIET_S + 3.5, LENGTH_S, Step())
        for second in range(1, int(LENGTH_S) + 1):
            is_throttled = QUIET_S < second <= QUIET_S + 3
            run.gpu(second - 0.01, mhz=990 if is_throttled else 1980, reasons=THERMAL if is_throttled else 0)

    diagnosis = diagnosed(tmp_path, until_the_middle_of_a_second)
    assert {one.cause: one.lost_ns / 1e9 for one in diagnosis.incidents} == {
        "gpu-throttled": pytest.approx(3.5 * 6 / 12.55, rel=0.05)
    }


def test_throttling_for_less_than_a_second_at_a_time_is_known_by_the_moments_of_the_samples(tmp_path: Path) -> None:
    """The second before each sample was half slow and half not."""

    def on_and_off(run: ScriptedRun, trainer: Actor) -> None:
        for second in range(int(QUIET_S), int(LENGTH_S)):
            is_odd = second % 2 == 1
            run.train(trainer, second, second + 0.5, Step())
            run.train(trainer, second + 0.5, second + 1, Step(busy_ms=12 if is_odd else 6))
        for second in range(1, int(LENGTH_S) + 1):
            is_throttled = second > QUIET_S and second % 2 == 0
            run.gpu(second - 0.01, mhz=990 if is_throttled else 1980, reasons=THERMAL if is_throttled else 0)

    assert causes(diagnosed(tmp_path, on_and_off)) == ["gpu-throttled"]


def test_what_the_device_lost_at_full_clocks_is_not_claimed(tmp_path: Path) -> None:
    def for_two_seconds(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=12))
        for second in range(1, int(LENGTH_S) + 1):
            is_throttled = QUIET_S < second <= QUIET_S + 2
            run.gpu(second - 0.01, mhz=990 if is_throttled else 1980, reasons=THERMAL if is_throttled else 0)

    diagnosis = diagnosed(tmp_path, for_two_seconds)
    by_cause = {one.cause: one.lost_ns / 1e9 for one in diagnosis.incidents}
    assert by_cause == {"gpu-throttled": pytest.approx(0.96, rel=0.1), "gpu-slower": pytest.approx(1.91, rel=0.1)}


def test_without_the_driver_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"GPU": "no libnvidia-ml"})
    assert "gpu-throttled" in {one.cause for one in diagnosis.not_evaluated}
