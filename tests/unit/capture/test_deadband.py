"""Which system snapshots are stored."""

from __future__ import annotations

from ingero.capture.host.snapshots import Deadband
from ingero.discover.system import SystemSample

S = 1_000_000_000


def sample(
    cpu: float = 50.0, memory: float = 40.0, free_mib: int = 1000, swap_mib: int = 0, load: float = 2.0
) -> SystemSample:
    return SystemSample(
        cpu_percent=cpu,
        mem_percent=memory,
        mem_total_bytes=0,
        mem_available_bytes=free_mib << 20,
        swap_used_bytes=swap_mib << 20,
        load_avg=(load, 0.0, 0.0),
        pressure={},
        throttling={},
    )


def test_without_a_deadband_every_snapshot_is_stored() -> None:
    deadband = Deadband(0, 60)
    assert [deadband.passes(second * S, sample()) for second in range(3)] == [True, True, True]


def test_what_has_not_moved_is_not_stored_until_the_heartbeat() -> None:
    deadband = Deadband(10, 5)
    assert [deadband.passes(second * S, sample()) for second in range(7)] == [True, *[False] * 4, True, False]


def test_each_figure_can_move() -> None:
    moved = (sample(cpu=56), sample(memory=45), sample(free_mib=880), sample(swap_mib=2), sample(load=2.3))
    for one in moved:
        deadband = Deadband(10, 60)
        deadband.passes(0, sample())
        assert deadband.passes(S, one)


def test_a_slow_drift_is_measured_from_the_snapshot_that_was_stored() -> None:
    deadband = Deadband(10, 60)
    assert [deadband.passes(i * S, sample(cpu=50 + 2 * i)) for i in range(4)] == [True, False, False, True]


def test_around_zero_a_share_of_the_value_would_be_noise() -> None:
    deadband = Deadband(10, 60)
    deadband.passes(0, sample(cpu=0.1, load=0.01))
    assert not deadband.passes(S, sample(cpu=0.15, load=0.05))
