"""Whole sync intervals that were read before: several rules ask for those of the same reference."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]
_Key: TypeAlias = "tuple[int, int, int]"

_KEPT_BYTES = 16 << 20  # a reference may lie in hundreds of short windows
_KEPT_AFTER_BYTES = 1 << 20  # of a small look, which reading them again would make half as long again


class KeptReads:
    """By window and process: those asked for last, as many as fit. Arrays are not to be changed."""

    def __init__(self) -> None:
        self._arrays: OrderedDict[_Key, Array] = OrderedDict()
        self._bytes = 0
        self._asked: set[_Key] = set()

    def get(self, window: Window, process: int, read: Callable[[], Array]) -> Array:
        """What is kept of this window, else what `read` answers."""
        key = (window.begin_ns, window.end_ns, process)
        self._asked.add(key)
        if key in self._arrays:
            self._arrays.move_to_end(key)
            return self._arrays[key]
        found = self._arrays[key] = read()
        self._bytes += found.nbytes
        self._make_room(_KEPT_BYTES)
        return found

    def end_look(self) -> None:
        """Keeps only what was asked for since the last time, and little: an open incident asks for others each time."""
        for key in self._arrays.keys() - self._asked:
            self._bytes -= self._arrays.pop(key).nbytes
        self._asked.clear()
        self._make_room(_KEPT_AFTER_BYTES)

    def _make_room(self, most_bytes: int) -> None:
        while self._bytes > most_bytes:
            self._bytes -= self._arrays.popitem(last=False)[1].nbytes
