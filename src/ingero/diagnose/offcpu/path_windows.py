"""Critical paths in a long recording, of which only the off-CPU intervals around each request are read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ingero.diagnose.offcpu.critical_path import CriticalPaths, PathSegment
from ingero.diagnose.offcpu.interval_blocks import BLOCK_NS
from ingero.store.arrays.arrays import OFFCPU_DTYPE
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

_MAX_BLOCKS = 32  # pairs of first and last block whose paths are cached


class PathWindows:
    """`CriticalPaths` for any length of time. read: intervals that touch a window. threads: as of `CriticalPaths`."""

    def __init__(self, read: Callable[[Window], Array], threads: Mapping[int, tuple[int, int]]) -> None:
        self._read, self._threads = read, threads
        self._blocks: OrderedDict[tuple[int, int], CriticalPaths] = OrderedDict()

    @staticmethod
    def complete_at_ns(at_ns: int) -> int:
        """The time from which later intervals change no answer about this time."""
        return (at_ns // BLOCK_NS + 1) * BLOCK_NS

    def intervals(self, tid: int, begin_ns: int, end_ns: int) -> Array:
        """The off-CPU intervals of a thread that touch [begin_ns, end_ns), sorted by end."""
        return self._around(begin_ns, end_ns).intervals(tid, begin_ns, end_ns)

    def path(self, tid: int, begin_ns: int, end_ns: int, *, outside_gpu_calls: bool = False) -> list[PathSegment]:
        """The path segments of a thread's sleeps in [begin_ns, end_ns), latest first (see `CriticalPaths.path`)."""
        return self._around(begin_ns, end_ns).path(tid, begin_ns, end_ns, outside_gpu_calls=outside_gpu_calls)

    def sleeps_with_stacks(self, spans: Mapping[int, Sequence[tuple[int, int]]]) -> Array:
        """The sleeps of threads whose stack was taken as they began, near the begins and ends of spans by thread."""
        near = {(at_ns // BLOCK_NS * BLOCK_NS, tid) for tid, mine in spans.items() for span in mine for at_ns in span}
        found = (self._around(block_ns, block_ns).sleeps_with_stacks(tid) for block_ns, tid in sorted(near))
        rows = np.concatenate([np.zeros(0, OFFCPU_DTYPE), *found])
        _, first = np.unique(rows[["tid", "start_ns"]], return_index=True)
        return rows[first]

    def before(self, segment: PathSegment, length_ns: int) -> list[PathSegment]:
        """The path that led to a segment (see `CriticalPaths.before`)."""
        return self._around(segment.begin_ns - length_ns, segment.begin_ns).before(segment, length_ns)

    def _around(self, begin_ns: int, end_ns: int) -> CriticalPaths:
        key = (begin_ns // BLOCK_NS, end_ns // BLOCK_NS)
        if key not in self._blocks:
            around = Window(begin_ns=key[0] * BLOCK_NS, end_ns=(key[1] + 1) * BLOCK_NS)
            self._blocks[key] = CriticalPaths(self._read(around), self._threads)
            if len(self._blocks) > _MAX_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(key)
        return self._blocks[key]
