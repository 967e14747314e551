"""Reads the launch counts per kernel function, once a second."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.attach.libbpf import Map

_FUNCTION_MASK = np.uint64((1 << 55) - 1)
_SLOT_SHIFT = np.uint64(56)


class LaunchReader:
    """The kernel's array of (process, function) counts."""

    def __init__(self, kernels: Map, dtype: np.dtype[Any]) -> None:
        self._cells: np.ndarray[Any, Any] = np.frombuffer(kernels.memory(), dtype, kernels.max_entries)
        self._before = np.zeros(kernels.max_entries, np.uint64)

    def read(self) -> list[tuple[int, int, int]]:
        """(slot, function, launches) since the last reading."""
        counts = self._cells["count"].copy()
        growth = counts - self._before
        self._before = counts
        moved = np.flatnonzero(growth)
        keys = self._cells["key"][moved]
        slots, functions = (keys >> _SLOT_SHIFT).tolist(), (keys & _FUNCTION_MASK).tolist()
        return list(zip(slots, functions, growth[moved].tolist(), strict=True))

    def forget(self, slot: int) -> None:
        """Frees the cells of an ended process."""
        keys = self._cells["key"]
        mine = np.flatnonzero((keys >> _SLOT_SHIFT == slot) & (keys != 0))
        self._cells["count"][mine] = 0
        self._before[mine] = 0
        self._cells["key"][mine] = 0
