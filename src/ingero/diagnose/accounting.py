"""Where the wall time of a lane went: device empty, busy, picked up late, each with the clocks of its path."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.events import CLOCKS, EpochFlag
from ingero.store.lanes import LaneSums

Array = np.ndarray[Any, np.dtype[Any]]
_NOT_RECORDED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the epochs: its length, and the clocks of the thread on the path, in the order of CLOCKS.

    unknown_ns: the share of the part that no thread's clocks cover.
    """

    total_ns: int
    clocks_ns: tuple[int, ...]
    unknown_ns: int

    def clock(self, name: str) -> int:
        """Nanoseconds of one clock."""
        return self.clocks_ns[CLOCKS.index(name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneAccount:
    """The epochs of one lane, summed: wall = empty + busy + late, to the nanosecond.

    empty: nothing was enqueued (E). busy: from the first enqueue until the device was ready (X), of which `enqueuing`
    until the drain began. late: the device was ready but the drain had not returned (P); late_low_ns and late_high_ns
    are its bounds where a thread was descheduled while it polled.
    """

    process: int
    pid: int
    device: int
    stream: int
    epochs: int
    incomplete: int
    launches: int
    size_bytes: int
    wall_ns: int
    empty: Part
    busy_ns: int
    enqueuing: Part
    late_ns: int
    late_low_ns: int
    late_high_ns: int
    drain: Part


def lane_accounts(epochs: Array) -> list[LaneAccount]:
    """One account per lane (process, device, stream), the one with the most device work first."""
    if not len(epochs):
        return []
    keys = epochs[["process", "device", "stream"]]
    accounts = [_account(epochs[keys == key]) for key in np.unique(keys)]
    return sorted(accounts, key=lambda account: -account.busy_ns)


def accounts_of_sums(lanes: Iterable[LaneSums]) -> list[LaneAccount]:
    """The same from sums that were kept while it was recorded."""
    accounts = [
        LaneAccount(
            process=lane.process,
            pid=lane.pid,
            device=lane.device,
            stream=lane.stream,
            epochs=lane.sums["epochs"],
            incomplete=lane.sums["incomplete"],
            launches=lane.sums["launches"],
            size_bytes=lane.sums["bytes"],
            wall_ns=lane.sums["wall_ns"],
            empty=_summed(lane, 0, "empty"),
            busy_ns=lane.sums["x_ns"],
            enqueuing=_summed(lane, 1, "enqueue"),
            late_ns=lane.sums["p_ns"],
            late_low_ns=lane.sums["p_low_ns"],
            late_high_ns=lane.sums["p_high_ns"],
            drain=_summed(lane, 2, "drain"),
        )
        for lane in lanes
    ]
    return sorted(accounts, key=lambda account: -account.busy_ns)


def main_lane(accounts: list[LaneAccount], process: int) -> LaneAccount | None:
    """The lane that paces a process: the one with the most device work. Lanes are never summed."""
    return next((account for account in accounts if account.process == process), None)


def _account(epochs: Array) -> LaneAccount:
    def total(name: str) -> int:
        return int(epochs[name].sum(dtype=np.int64))

    back = epochs["b_ns"]
    return LaneAccount(
        process=int(epochs["process"][0]),
        pid=int(epochs["pid"][0]),
        device=int(epochs["device"][0]),
        stream=int(epochs["stream"][0]),
        epochs=len(epochs),
        incomplete=int(((epochs["flags"] & int(EpochFlag.INCOMPLETE)) != 0).sum()),
        launches=total("launches"),
        size_bytes=total("bytes"),
        wall_ns=int((back - epochs["a_ns"]).sum()),
        empty=_part(epochs, "empty", epochs["e_ns"]),
        busy_ns=total("x_ns"),
        enqueuing=_part(epochs, "enqueue", epochs["s_ns"] - epochs["f_ns"]),
        late_ns=total("p_ns"),
        late_low_ns=int((back - epochs["r_high_ns"]).sum()),
        late_high_ns=int((back - epochs["r_low_ns"]).sum()),
        drain=_part(epochs, "drain", back - epochs["s_ns"]),
    )


def _summed(lane: LaneSums, index: int, name: str) -> Part:
    return Part(
        total_ns=lane.sums[f"{name}_ns"],
        clocks_ns=tuple(int(value) for value in lane.clocks_ns[index]),
        unknown_ns=lane.sums[f"{name}_unknown_ns"],
    )


def _part(epochs: Array, name: str, lengths: Array) -> Part:
    clocks = epochs[f"{name}_clock_ns"]
    is_known = clocks[:, 0] != _NOT_RECORDED
    return Part(
        total_ns=int(lengths.sum()),
        clocks_ns=tuple(int(value) for value in clocks[is_known].sum(axis=0, dtype=np.int64)),
        unknown_ns=int(lengths[~is_known].sum()),
    )
