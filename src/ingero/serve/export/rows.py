"""Places slices on a track: those that overlap without nesting go to further rows of it."""

from __future__ import annotations

_CLOCK_ERROR_NS = 1_000  # between the wall clock's rates that the ends of two neighbors were converted with


class Neighbors:
    """Begins of slices that follow each other; only their ends are exact, their lengths are of another clock."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}

    def begin(self, key: tuple[int, ...], start_ns: int, end_ns: int) -> int:
        """The begin of a slice, moved behind the previous one of the same key if they overlap only by clock error."""
        before_ns = self._ends.get(key, start_ns)
        self._ends[key] = end_ns
        return before_ns if start_ns < before_ns <= min(start_ns + _CLOCK_ERROR_NS, end_ns) else start_ns


class Rows:
    """The open slices of one track. Slices are placed in the order of their begin."""

    def __init__(self, *, can_nest: bool) -> None:
        self._can_nest = can_nest
        self._open_ends: list[list[int]] = [[]]

    def place(self, start_ns: int, end_ns: int) -> int:
        """The number of the first row in which a slice does not overlap others, or nests inside one."""
        for number, ends in enumerate(self._open_ends):
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or (self._can_nest and end_ns <= ends[-1]):
                ends.append(end_ns)
                return number
        self._open_ends.append([end_ns])
        return len(self._open_ends) - 1
