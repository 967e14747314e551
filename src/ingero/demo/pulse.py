"""A recording second by second, and its time breakdown before and during an incident, as the demos draw them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """One second of a process: its sync intervals, how long they took, and how busy the GPU was."""

    number: int
    syncs: int
    median_ns: float
    p99_ns: float
    busy_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Shares of the wall time: GPU idle, GPU busy, and sync return delay."""

    idle: float
    busy: float
    return_delay: float


def gpu_stream_of(reader: Reader, pid: int) -> Array | None:
    """The sync intervals of a process's main stream so far; None where there are none yet."""
    window = reader.time_range()
    if window is None:
        return None
    evidence = Evidence(reader, window)
    number = next((process.process for process in reader.processes() if process.pid == pid), 0)
    return evidence.gpu_streams.get(number)


def seconds(gpu_stream: Array) -> Iterator[Second]:
    """The whole seconds since the first sync interval; the last second is left out, because it may be incomplete."""
    begin_ns = int(gpu_stream["prev_sync_end_ns"][0])
    numbers = (gpu_stream["sync_end_ns"] - begin_ns) // SECOND_NS
    for number in range(int(numbers[-1])):
        mine = gpu_stream[numbers == number]
        lengths = mine["sync_end_ns"] - mine["prev_sync_end_ns"]
        yield Second(
            number=number,
            syncs=len(mine),
            median_ns=float(np.median(lengths)) if len(mine) else 0.0,
            p99_ns=float(np.quantile(lengths, 0.99)) if len(mine) else 0.0,
            busy_ratio=float(mine["busy_ns"].sum() / max(lengths.sum(), 1)) if len(mine) else 0.0,
        )


def breakdown(gpu_stream: Array, window: Window) -> Breakdown | None:
    """The breakdown of the sync intervals that ended in the window; None where none did."""
    mine = gpu_stream[(gpu_stream["sync_end_ns"] >= window.begin_ns) & (gpu_stream["sync_end_ns"] < window.end_ns)]
    wall = float((mine["sync_end_ns"] - mine["prev_sync_end_ns"]).sum())
    if not wall:
        return None
    idle, busy, delay = (float(mine[name].sum()) / wall for name in ("idle_ns", "busy_ns", "return_delay_ns"))
    return Breakdown(idle=idle, busy=busy, return_delay=delay)
