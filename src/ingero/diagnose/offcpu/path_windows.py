"""Paths through the intervals off the CPU of a long recording: only those around what is asked for are read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ingero.diagnose.offcpu.critical_path import Segment, Waits
from ingero.diagnose.offcpu.interval_blocks import BLOCK_NS
from ingero.store.arrays.arrays import OFFCPU_DTYPE
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

_MOST_BLOCKS = 32


class WaitWindows:
    """As `Waits`, of any length of time. read: the intervals that touch a window. threads: as there."""

    def __init__(self, read: Callable[[Window], Array], threads: Mapping[int, tuple[int, int]]) -> None:
        self._read, self._threads = read, threads
        self._blocks: OrderedDict[tuple[int, int], Waits] = OrderedDict()

    @staticmethod
    def complete_at_ns(at_ns: int) -> int:
        """From when on later intervals change no answer about this moment."""
        return (at_ns // BLOCK_NS + 1) * BLOCK_NS

    def intervals(self, tid: int, begin_ns: int, end_ns: int) -> Array:
        """The intervals of a thread that touch [begin_ns, end_ns), by their end."""
        return self._around(begin_ns, end_ns).intervals(tid, begin_ns, end_ns)

    def path(self, tid: int, begin_ns: int, end_ns: int, *, outside_gpu_calls: bool = False) -> list[Segment]:
        """What the sleeps of a thread in [begin_ns, end_ns) went into, latest first (see `Waits.path`)."""
        return self._around(begin_ns, end_ns).path(tid, begin_ns, end_ns, outside_gpu_calls=outside_gpu_calls)

    def looks(self, spans: Mapping[int, Sequence[tuple[int, int]]]) -> Array:
        """Those sleeps of some threads that were looked at as they began, near the begins and ends of these spans."""
        near = {(at_ns // BLOCK_NS * BLOCK_NS, tid) for tid, mine in spans.items() for span in mine for at_ns in span}
        found = (self._around(block_ns, block_ns).looks(tid) for block_ns, tid in sorted(near))
        rows = np.concatenate([np.zeros(0, OFFCPU_DTYPE), *found])
        _, first = np.unique(rows[["tid", "start_ns"]], return_index=True)
        return rows[first]

    def before(self, segment: Segment, length_ns: int) -> list[Segment]:
        """What led to a piece of a path."""
        return self._around(segment.begin_ns - length_ns, segment.begin_ns).before(segment, length_ns)

    def _around(self, begin_ns: int, end_ns: int) -> Waits:
        key = (begin_ns // BLOCK_NS, end_ns // BLOCK_NS)
        if key not in self._blocks:
            around = Window(begin_ns=key[0] * BLOCK_NS, end_ns=(key[1] + 1) * BLOCK_NS)
            self._blocks[key] = Waits(self._read(around), self._threads)
            if len(self._blocks) > _MOST_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(key)
        return self._blocks[key]
