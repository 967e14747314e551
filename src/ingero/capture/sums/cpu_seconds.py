"""Writes one row a second per CPU: busy, idle, I/O wait, interrupts, steal time."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from ingero.capture.records.rows import Sink
from ingero.store.writing import tables

Array = np.ndarray[Any, np.dtype[Any]]

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
# A tick is 10 ms: readings closer together than this would round away what they are to tell.
_SHORTEST_NS = 900_000_000
_USER, _NICE, _SYSTEM, _IDLE, _IOWAIT, _IRQ, _SOFTIRQ, _STEAL = range(1, 9)  # of a line; guest time is part of user


class CpuSeconds:
    """Writes `raw_cpu_seconds`; times are growth since the row before."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._before: Array | None = None
        self._before_ns = 0

    def write(self, stat: str, time_ns: int) -> None:
        """Writes the rows of a second. stat: the text of /proc/stat at `time_ns`."""
        elapsed_ns = time_ns - self._before_ns
        if elapsed_ns < _SHORTEST_NS:
            return
        now = cpu_ticks(stat)
        before, self._before, self._before_ns = self._before, now, time_ns
        grown = None if before is None else _growth(now, before)
        if grown is None or not len(grown):
            return
        row = tables.CPU_SECONDS.rows(
            1,
            session=self._sink.session,
            time_ns=time_ns,
            elapsed_ns=elapsed_ns,
            tick_ns=_TICK_NS,
            cpus=json.dumps(grown.tolist(), separators=(",", ":")),
        )
        self._sink.append(tables.CPU_SECONDS, row)


def cpu_ticks(stat: str) -> Array:
    """A row for each CPU that is online: its number; busy, idle, iowait, irq, steal since boot. From /proc/stat."""
    lines = [line[3:].split() for line in stat.splitlines()[1:] if line.startswith("cpu")]
    if not lines:
        return np.empty((0, 6), np.int64)
    ticks = np.array(lines, np.int64)
    busy = ticks[:, _USER] + ticks[:, _NICE] + ticks[:, _SYSTEM]
    interrupts = ticks[:, _IRQ] + ticks[:, _SOFTIRQ]
    return np.stack([ticks[:, 0], busy, ticks[:, _IDLE], ticks[:, _IOWAIT], interrupts, ticks[:, _STEAL]], axis=1)


def _growth(now: Array, before: Array) -> Array:
    """Growth for CPUs that were online both times. Idle and iowait may go back when a CPU goes offline."""
    _, at_now, at_before = np.intersect1d(now[:, 0], before[:, 0], return_indices=True)
    grown: Array = np.maximum(now[at_now] - before[at_before], 0)
    grown[:, 0] = now[at_now, 0]
    return grown
