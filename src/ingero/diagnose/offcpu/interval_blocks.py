"""A cache of off-CPU intervals by blocks of time, because the rules of a case read overlapping windows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK_NS = 10_000_000_000  # a recording with 500 intervals a second is read in 30 ms per block
_MAX_BLOCKS = 8  # that are cached


class OffcpuBlocks:
    """The blocks used last. read: the intervals that touch a window (`store.arrays.OFFCPU_DTYPE`), sorted by begin."""

    def __init__(self, read: Callable[[Window], Array]) -> None:
        self._read = read
        self._blocks: OrderedDict[int, Array] = OrderedDict()

    def rows(self, window: Window) -> Array:
        """The intervals that touch a window, sorted by begin; those of a long window are not cached."""
        first, last = window.begin_ns // BLOCK_NS, (window.end_ns - 1) // BLOCK_NS
        if last - first >= _MAX_BLOCKS:
            return self._read(window)
        blocks = [self._block(number) for number in range(first, last + 1)]
        begun = [one[one["start_ns"] >= number * BLOCK_NS] for number, one in enumerate(blocks[1:], first + 1)]
        rows = np.concatenate([*blocks[:1], *begun])
        ends = rows["start_ns"] + rows["duration_ns"]
        touching: Array = rows[(rows["start_ns"] < window.end_ns) & (ends >= window.begin_ns)]
        return touching

    def _block(self, number: int) -> Array:
        if number not in self._blocks:
            whole = Window(begin_ns=number * BLOCK_NS, end_ns=(number + 1) * BLOCK_NS)
            self._blocks[number] = self._read(whole)
            if len(self._blocks) > _MAX_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return self._blocks[number]
