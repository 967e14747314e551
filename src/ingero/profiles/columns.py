"""Bounded tables of rows that become numpy arrays, and bounded sets of distinct texts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ingero.profiles.model import Array

_BATCH_ROWS = 1 << 14  # rows as Python's objects, which take ten times as much
# 2 GB of calls and activities. The largest profile of the research has 0.3 million.
MAX_ROWS = 20_000_000
MAX_TEXTS = 500_000  # distinct names of one file; the research's largest has 6,000
MAX_TEXT_CHARACTERS = 4096  # a kernel's name with its template arguments is up to 2,000
_MAX_PRINTED = 300
TOO_MANY_ROWS = "more rows than an import may hold"
TOO_MANY_TEXTS = "more distinct names than an import may hold"


class Table:
    """Collects rows of one dtype, at most MAX_ROWS."""

    def __init__(self, dtype: np.dtype[Any], dropped: Counter[str]) -> None:
        self._dtype = dtype
        self._dropped = dropped
        self._waiting: list[tuple[int, ...]] = []
        self._done: list[Array] = []
        self._count = 0

    def __len__(self) -> int:
        """The number of rows."""
        return self._count + len(self._waiting)

    def add(self, row: tuple[int, ...]) -> None:
        """Adds a row."""
        self._waiting.append(row)
        if len(self._waiting) >= _BATCH_ROWS:
            self._pack()

    def rows(self) -> Array:
        """All rows as an array."""
        self._pack()
        return np.concatenate([np.zeros(0, self._dtype), *self._done])

    def _pack(self) -> None:
        room = max(0, MAX_ROWS - self._count)
        if len(self._waiting) > room:
            self._dropped[TOO_MANY_ROWS] += len(self._waiting) - room
        kept = np.array(self._waiting[:room], self._dtype)
        self._count += len(kept)
        self._done.append(kept)
        self._waiting = []


class Texts:
    """Distinct texts by number; 0 is the empty one. Long texts are cut, and all are valid UTF-8."""

    def __init__(self, dropped: Counter[str]) -> None:
        self._dropped = dropped
        self._numbers: dict[str, int] = {"": 0}

    def number(self, text: str) -> int:
        """The number of a text; 0 for texts past the limit, which are counted."""
        known = self._numbers.get(text)
        if known is not None:
            return known
        clean = cleaned(text)
        if clean in self._numbers:
            return self._numbers[clean]
        if len(self._numbers) >= MAX_TEXTS:
            self._dropped[TOO_MANY_TEXTS] += 1
            return 0
        return self._numbers.setdefault(clean, len(self._numbers))

    def all(self) -> tuple[str, ...]:
        """The texts, by number."""
        return tuple(self._numbers)


def printable(text: str) -> str:
    """A foreign name or message that is safe to print on a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MAX_PRINTED])


def cleaned(text: str) -> str:
    """A text of a foreign file, bounded and without what UTF-8 cannot hold."""
    return text[:MAX_TEXT_CHARACTERS].encode("utf-8", "replace").decode()
