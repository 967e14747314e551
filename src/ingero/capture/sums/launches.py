"""Reads the launch counts per kernel function and caller, once a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.attach.kernel_side import SLOT_SHIFT
from ingero.attach.libbpf import Map

_SLOT_SHIFT = np.uint64(SLOT_SHIFT)


@dataclass(frozen=True, slots=True)
class LaunchGrowth:
    """How often one caller has launched one kernel since the last reading.

    generation: ordinal of the kernel among those that had this handle; 0: not reported, or a host stub.
    """

    slot: int
    function: int
    generation: int
    caller: int
    count: int


class LaunchReader:
    """Reads the kernel's array of launch counts, and the handles of the launched kernels."""

    def __init__(self, kernels: Map, handles: Map, cell: np.dtype[Any], handle: np.dtype[Any]) -> None:
        self._cells: np.ndarray[Any, Any] = np.frombuffer(kernels.memory(), cell, kernels.max_entries)
        self._handles: np.ndarray[Any, Any] = np.frombuffer(handles.memory(), handle, handles.max_entries)
        self._before = np.zeros(kernels.max_entries, np.uint64)

    def read(self) -> list[LaunchGrowth]:
        """The launches since the last reading."""
        is_claimed = self._cells["function"] != 0  # else its fields are being written: counted at the next reading
        counts = np.where(is_claimed, self._cells["count"], self._before)
        growth = counts - self._before
        self._before = counts
        moved = np.flatnonzero(growth)
        cells = self._cells[moved]
        columns = [(cells["key"] >> _SLOT_SHIFT), cells["function"], cells["generation"], cells["caller"]]
        rows = zip(*(column.tolist() for column in columns), growth[moved].tolist(), strict=True)
        return [LaunchGrowth(*row) for row in rows]

    def forget(self, slot: int) -> None:
        """Frees the cells and handles of an ended process."""
        cells = self._cells
        mine = np.flatnonzero((cells["key"] >> _SLOT_SHIFT == slot) & (cells["key"] != 0))
        for name in ("count", "function", "key"):  # the key last: from then on the cell is free
            cells[name][mine] = 0
        self._before[mine] = 0
        keys = self._handles["key"]
        mine = np.flatnonzero((keys >> _SLOT_SHIFT == slot) & (keys != 0))
        for name in ("generation", "name_hash", "source", "key"):
            self._handles[name][mine] = 0
