"""What a live diagnosis keeps from pass to pass: whole sync intervals, because several rules read the same baseline."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]
_Key: TypeAlias = "tuple[int, int, int]"

_MAX_BYTES = 16 << 20  # during a pass: a baseline may lie in hundreds of short windows
_MAX_BYTES_BETWEEN = 1 << 20  # between passes: reading them again would make a small pass half as long again


class IntervalCache:
    """Arrays by window and process: the last used ones, as many as fit. Callers must not change them.

    trainers: numbers of processes that were found to train; what shows it may be over when they wait.
    """

    def __init__(self) -> None:
        self.trainers: set[int] = set()
        self._arrays: OrderedDict[_Key, Array] = OrderedDict()
        self._bytes = 0
        self._asked: set[_Key] = set()

    def get(self, window: Window, process: int, read: Callable[[], Array]) -> Array:
        """The cached array of this window and process, else the answer of `read`, which is then cached."""
        key = (window.begin_ns, window.end_ns, process)
        self._asked.add(key)
        if key in self._arrays:
            self._arrays.move_to_end(key)
            return self._arrays[key]
        found = self._arrays[key] = read()
        self._bytes += found.nbytes
        self._make_room(_MAX_BYTES)
        return found

    def end_pass(self) -> None:
        """Drops what this pass did not use, and most of the rest: an ongoing incident reads other arrays each time."""
        for key in self._arrays.keys() - self._asked:
            self._bytes -= self._arrays.pop(key).nbytes
        self._asked.clear()
        self._make_room(_MAX_BYTES_BETWEEN)

    def _make_room(self, max_bytes: int) -> None:
        while self._bytes > max_bytes:
            self._bytes -= self._arrays.popitem(last=False)[1].nbytes
