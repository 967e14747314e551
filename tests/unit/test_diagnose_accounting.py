"""A lane's account adds up, and names what it does not know."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.accounting import lane_accounts, main_lane
from ingero.events import CLOCKS, EpochFlag
from ingero.store.arrays import EPOCH_DTYPE

MS = 1_000_000


def epoch(begin_ms: int, *, empty: int, busy: int, late: int, **fields: Any) -> np.ndarray[Any, Any]:
    """One epoch; the drain begins when the device is ready."""
    made = np.zeros(1, EPOCH_DTYPE)
    a = begin_ms * MS
    f, r, b = a + empty * MS, a + (empty + busy) * MS, a + (empty + busy + late) * MS
    values = {
        "process": 1, "pid": 10, "a_ns": a, "f_ns": f, "s_ns": r, "r_ns": r, "r_low_ns": r, "r_high_ns": r, "b_ns": b,
        "e_ns": f - a, "x_ns": r - f, "p_ns": b - r, "launches": 5, **fields,
    }  # fmt: skip
    for name, value in values.items():
        made[name] = value
    return made


def test_wall_time_is_empty_plus_busy_plus_late() -> None:
    account = lane_accounts(np.concatenate([epoch(0, empty=1, busy=5, late=2), epoch(8, empty=3, busy=4, late=0)]))[0]
    assert account.wall_ns == 15 * MS
    assert account.wall_ns == account.empty.total_ns + account.busy_ns + account.late_ns
    assert account.epochs == 2
    assert account.launches == 10


def test_lanes_are_kept_apart() -> None:
    epochs = np.concatenate([epoch(0, empty=1, busy=5, late=0), epoch(0, empty=0, busy=9, late=0, stream=7)])
    accounts = lane_accounts(epochs)
    assert [(one.stream, one.busy_ns) for one in accounts] == [(7, 9 * MS), (0, 5 * MS)]


def test_the_main_lane_is_the_one_with_the_most_device_work() -> None:
    epochs = np.concatenate([epoch(0, empty=1, busy=5, late=0), epoch(0, empty=0, busy=9, late=0, stream=7)])
    main = main_lane(lane_accounts(epochs), 1)
    assert main is not None
    assert main.stream == 7
    assert main_lane(lane_accounts(epochs), 2) is None


def test_parts_without_a_thread_of_their_own_are_unknown_time() -> None:
    handed_over = epoch(0, empty=4, busy=1, late=0)
    handed_over["empty_clock_ns"] = -1
    own = epoch(5, empty=3, busy=1, late=0)
    own["empty_clock_ns"][0, CLOCKS.index("sleep")] = 3 * MS
    part = lane_accounts(np.concatenate([handed_over, own]))[0].empty
    assert part.unknown_ns == 4 * MS
    assert part.clock("sleep") == 3 * MS


def test_incomplete_epochs_are_counted() -> None:
    epochs = np.concatenate(
        [epoch(0, empty=0, busy=1, late=0, flags=int(EpochFlag.INCOMPLETE)), epoch(1, empty=0, busy=1, late=0)]
    )
    assert lane_accounts(epochs)[0].incomplete == 1


def test_late_pickup_keeps_its_bounds() -> None:
    polled = epoch(0, empty=0, busy=4, late=2)
    polled["r_low_ns"] -= MS
    polled["r_high_ns"] += MS
    account = lane_accounts(polled)[0]
    assert (account.late_low_ns, account.late_ns, account.late_high_ns) == (MS, 2 * MS, 3 * MS)


def test_nothing_recorded_is_no_account() -> None:
    assert lane_accounts(np.zeros(0, EPOCH_DTYPE)) == []
