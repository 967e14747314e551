"""A recording second by second, and its account before an incident and while it lasts: what the demos draw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.evidence import Evidence
from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """One second of a process: its steps (drains), how long they took, and how busy the device was."""

    number: int
    steps: int
    median_ns: float
    p99_ns: float
    busy_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Shares of the wall time: device empty, busy, and ready but not picked up."""

    empty: float
    busy: float
    late: float


def lane_of(reader: Reader, pid: int) -> Array | None:
    """The epochs of a process's main lane so far; None where there are none yet."""
    window = reader.time_range()
    if window is None:
        return None
    evidence = Evidence(reader, window)
    process = next((one.process for one in reader.processes() if one.pid == pid), 0)
    return evidence.lanes.get(process)


def seconds(lane: Array) -> Iterator[Second]:
    """The whole seconds from its first epoch on; the last is left out while it may go on."""
    begin_ns = int(lane["a_ns"][0])
    numbers = (lane["b_ns"] - begin_ns) // SECOND_NS
    for number in range(int(numbers[-1])):
        mine = lane[numbers == number]
        lengths = mine["b_ns"] - mine["a_ns"]
        yield Second(
            number=number,
            steps=len(mine),
            median_ns=float(np.median(lengths)) if len(mine) else 0.0,
            p99_ns=float(np.quantile(lengths, 0.99)) if len(mine) else 0.0,
            busy_ratio=float(mine["x_ns"].sum() / max(lengths.sum(), 1)) if len(mine) else 0.0,
        )


def account(lane: Array, window: Window) -> Account | None:
    """Of the epochs that ended in the window; None where none did."""
    mine = lane[(lane["b_ns"] >= window.begin_ns) & (lane["b_ns"] < window.end_ns)]
    wall = float((mine["b_ns"] - mine["a_ns"]).sum())
    if not wall:
        return None
    empty, busy, late = (float(mine[name].sum()) / wall for name in ("e_ns", "x_ns", "p_ns"))
    return Account(empty=empty, busy=busy, late=late)
