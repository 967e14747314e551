"""Reads the kernel's exact sums per (process, operation, caller) once a second and feeds thresholds back.

The differences between two readings are the second's calls; nothing here is sampled.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.attach.kernel_side import CELL_OP_SHIFT, SLOT_SHIFT
from ingero.attach.libbpf import Map

RARE_PER_SECOND = 100  # an operation below this rate is recorded whole
RARE_RECORDS = 200  # of one call site until the next reading: after a quiet time a program may go on at full rate
SAMPLES_PER_SECOND = 10
MAX_RECORDS_PER_SECOND = 2000  # of one process; above it the thresholds rise
COPY_SUMS = ("host_to_gpu_bytes", "gpu_to_host_bytes", "blocked_ns")  # columns of raw_copies
_SUMS = (
    *("count", "errors", "sum_ns", "size_bytes", "nested", "state_ns", "residual_ns", "recorded", "histogram"),
    *COPY_SUMS,
)
_RUN = 0  # of state_ns: what the kernel leaves to us

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellGrowth:
    """Calls of one (process, operation, caller) since the last reading. `histogram` has 256 counts.

    row: of `growth` in `growth.base`, which all cells of a reading share.
    untimed: of the count, how many have no duration, because they were only counted at their entry.
    """

    slot: int
    op: int
    caller: int
    growth: np.void
    row: int
    max_ns: int
    histogram: Array
    untimed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellColumns:
    """Columns of cells. growth: a structured array; `rows`: their indexes in it."""

    growth: Array
    rows: Array
    ops: Array
    slots: Array
    max_ns: Array


class Cells(list[CellGrowth]):
    """The cells of one reading, of which there may be thousands; `columns` needs no loop over them.

    keys, rows: of each cell.
    """

    def __init__(self, cells: Iterable[CellGrowth], keys: Array, growth: Array, rows: Array) -> None:
        super().__init__(cells)
        self._keys, self._growth, self._rows = keys.astype(np.uint64), growth, rows

    def columns(self) -> CellColumns:
        """The columns of these cells."""
        return CellColumns(
            growth=self._growth,
            rows=self._rows,
            ops=(self._keys >> np.uint64(CELL_OP_SHIFT) & np.uint64(0xFF)).astype(np.int64) - 1,
            slots=(self._keys >> np.uint64(SLOT_SHIFT)).astype(np.int64),
            max_ns=np.asarray([cell.max_ns for cell in self]),
        )


class CellReader:
    """Reads the mapped arrays `cell_keys` and `cells`, and keeps their content of the last reading."""

    def __init__(self, keys: Map, cells: Map, dtype: np.dtype[Any]) -> None:
        self._keys: Array = np.frombuffer(keys.memory(), np.uint64, keys.max_entries)
        self._cells: Array = np.frombuffer(cells.memory(), dtype, cells.max_entries)
        self._before = _sparse_zeros(cells.max_entries, dtype)
        self.records_ratio = 1.0  # of the usual number of records
        self.untimed_ops: frozenset[int] = frozenset()  # ids that may have been counted at entry since the last reading

    def read(self, elapsed_s: float) -> list[CellGrowth]:
        """Growth of each cell with calls since the last reading, `elapsed_s` ago; sets new thresholds."""
        used = np.flatnonzero(self._keys != 0)  # of a copy: numpy raises if the kernel adds a cell while it counts
        if not len(used):
            return []
        keys, now, before = self._keys[used], self._cells[used], self._before[used]
        _fill_run_clock(now, before)
        growth = now.copy()
        for name in _SUMS:  # unsigned: a histogram bucket that wrapped still gives its growth
            growth[name] = now[name] - before[name]
        self._feed_thresholds(used, keys, now, growth, elapsed_s)
        moved = np.flatnonzero((growth["count"] != 0) | (growth["nested"] != 0))
        self._before[used[moved]] = now[moved]  # of the others, a call that is just being counted stays for next time
        cells = [self._growth(int(keys[i]), growth, i, int(before["max_ns"][i])) for i in moved.tolist()]
        return Cells(cells, keys[moved], growth, moved)

    def _growth(self, key: int, reading: Array, row: int, max_before_ns: int) -> CellGrowth:
        growth = reading[row]
        max_ns = int(growth["max_ns"])
        if max_ns == max_before_ns:  # no new maximum: the best known bound is the highest bucket that grew
            filled = np.flatnonzero(growth["histogram"])
            max_ns = min(max_ns, int(bucket_lower_bound_ns(int(filled[-1]) + 1))) if len(filled) else 0
        op, untimed = (key >> CELL_OP_SHIFT & 0xFF) - 1, 0
        if op in self.untimed_ops:  # elsewhere a call that returns while this is read would seem to have no duration
            untimed = max(0, int(growth["count"]) - int(growth["histogram"].sum(dtype=np.uint64)))
        return CellGrowth(
            slot=key >> SLOT_SHIFT,
            op=op,
            caller=int(growth["caller"]),
            growth=growth,
            row=row,
            max_ns=max_ns,
            histogram=growth["histogram"],
            untimed=untimed,
        )

    def _feed_thresholds(self, used: Array, keys: Array, now: Array, growth: Array, elapsed_s: float) -> None:
        """Sets thresholds per process and operation: rare calls are all recorded, else the slowest 1% and a few."""
        groups, inverse = np.unique(keys >> np.uint64(CELL_OP_SHIFT), return_inverse=True)
        rates = np.bincount(inverse, growth["count"]) / elapsed_s
        slots = (groups >> np.uint64(SLOT_SHIFT - CELL_OP_SHIFT)).astype(np.int64)
        records_of_slot = np.bincount(slots, np.bincount(inverse, growth["recorded"]) / elapsed_s)
        pressure = np.maximum(1.0, records_of_slot[slots] / (MAX_RECORDS_PER_SECOND * self.records_ratio))
        is_rare = rates < RARE_PER_SECOND * self.records_ratio
        thresholds = np.zeros(len(groups), np.uint64)
        for group in np.flatnonzero(rates):
            histogram = now["histogram"][inverse == group].sum(axis=0, dtype=np.uint64)
            thresholds[group] = int(percentile_bound_ns(histogram, 0.99) * pressure[group])
        per_sample = np.maximum(1, rates // (SAMPLES_PER_SECOND * self.records_ratio))
        called, rare = rates[inverse] > 0, is_rare[inverse]
        self._cells["threshold_ns"][used[called]] = thresholds[inverse[called]]
        self._cells["sample"][used] = np.where(is_rare, 0, per_sample).astype(np.uint64)[inverse]
        self._cells["rare_until"][used[rare]] = now["count"][rare] + RARE_RECORDS

    def forget(self, slot: int) -> None:
        """Frees the cells of an ended process. Its threads are gone, so nothing writes to them."""
        mine = np.flatnonzero((self._keys >> np.uint64(SLOT_SHIFT) == slot) & (self._keys != 0))
        self._cells[mine] = np.zeros(1, self._cells.dtype)[0]
        self._before[mine] = np.zeros(1, self._cells.dtype)[0]
        self._keys[mine] = 0


def columns_of(cells: Sequence[CellGrowth]) -> CellColumns:
    """The columns of any sequence of cells."""
    if isinstance(cells, Cells):
        return cells.columns()
    growth, rows = reading_of(cells)
    ops, slots, max_ns = (np.asarray([getattr(cell, name) for cell in cells]) for name in ("op", "slot", "max_ns"))
    return CellColumns(growth=growth, rows=rows, ops=ops, slots=slots, max_ns=max_ns)


def reading_of(cells: Sequence[CellGrowth]) -> tuple[Array, Array]:
    """A structured array that holds the growth of these cells, and the row of each in it.

    It is copied only where they are of several readings.
    """
    reading: Any = cells[0].growth.base  # numpy has it typed as None
    if all(cell.growth.base is reading for cell in cells):
        return reading, np.asarray([cell.row for cell in cells])
    copied = np.frombuffer(b"".join([cell.growth.tobytes() for cell in cells]), cells[0].growth.dtype)
    return copied, np.arange(len(cells))


def _sparse_zeros(count: int, dtype: np.dtype[Any]) -> Array:
    """Zeroed memory that is allocated page by page as it is written: numpy would use 2 MB pages for this size."""
    memory = mmap.mmap(-1, count * dtype.itemsize)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    zeros: Array = np.frombuffer(memory, dtype)
    return zeros


def _fill_run_clock(now: Array, before: Array) -> None:
    """Fills in running time, the rest of each duration: the kernel side saves an addition per call.

    It adds durations last: read in the middle of a call, the rest is too small, and must not shrink.
    """
    others = now["state_ns"][:, _RUN + 1 :].sum(axis=1, dtype=np.int64) + now["residual_ns"]
    ran = now["sum_ns"].astype(np.int64) - others
    now["state_ns"][:, _RUN] = np.maximum(ran, before["state_ns"][:, _RUN].astype(np.int64))


def percentile_bound_ns(histogram: Array, ratio: float) -> float:
    """Lower bound of the bucket that holds the `ratio` quantile; `histogram` has 256 counts."""
    cumulated = np.cumsum(histogram)
    bucket = int(np.searchsorted(cumulated, ratio * float(cumulated[-1])))
    return bucket_lower_bound_ns(bucket)


def bucket_lower_bound_ns(bucket: int) -> float:
    """Lower bound of a bucket of the scale-3 histogram (bpf/cells.h): bucket 0 is all below 128 ns."""
    return 0.0 if bucket == 0 else 128.0 * 2.0 ** ((bucket - 1) / 8)
