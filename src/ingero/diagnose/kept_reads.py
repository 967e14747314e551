"""What was read before: several rules ask for the whole epochs of one reference, and each look asks again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]
_Answer = TypeVar("_Answer")
_Key: TypeAlias = "tuple[int, int, int]"

_KEPT_BYTES = 16 << 20  # a reference may lie in hundreds of short windows
_KEPT_AFTER_BYTES = 1 << 20  # of a small look, which reading them again would make half as long again


class KeptReads:
    """Epochs by window and process: those asked for last, as many as fit. Arrays are not to be changed.

    Beside them small answers about what is over and does not change any more, by what was asked.
    """

    def __init__(self) -> None:
        self._arrays: OrderedDict[_Key, Array] = OrderedDict()
        self._bytes = 0
        self._asked: set[_Key] = set()
        self._answers: dict[Hashable, Any] = {}
        self._last_answers: dict[Hashable, Any] = {}  # of the look before

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

    def answer(self, key: Hashable, ask: Callable[[], _Answer]) -> _Answer:
        """What is kept of this question, from this look or the one before, else what `ask` answers."""
        if key not in self._answers:
            self._answers[key] = self._last_answers[key] if key in self._last_answers else ask()
        found: _Answer = self._answers[key]
        return found

    def end_look(self) -> None:
        """Keeps only what was asked for since the last time, and little: an open incident asks for others each time."""
        self._last_answers, self._answers = self._answers, {}
        for key in self._arrays.keys() - self._asked:
            self._bytes -= self._arrays.pop(key).nbytes
        self._asked.clear()
        self._make_room(_KEPT_AFTER_BYTES)

    def _make_room(self, most_bytes: int) -> None:
        while self._bytes > most_bytes:
            self._bytes -= self._arrays.popitem(last=False)[1].nbytes
