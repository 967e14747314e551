"""Finds room on a track: slices that overlap without one containing the other go to further rows of it."""

from __future__ import annotations


class Rows:
    """The open slices of one track. Slices are placed in the order of their begin."""

    def __init__(self, *, can_nest: bool) -> None:
        self._can_nest = can_nest
        self._open_ends: list[list[int]] = [[]]

    def place(self, start_ns: int, end_ns: int) -> int:
        """The number of the first row in which a slice lies apart from the others, or inside of one."""
        for number, ends in enumerate(self._open_ends):
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or (self._can_nest and end_ns <= ends[-1]):
                ends.append(end_ns)
                return number
        self._open_ends.append([end_ns])
        return len(self._open_ends) - 1
