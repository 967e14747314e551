"""Memory budget for the answers of all nodes: the largest answer gives way, not the latest."""

from __future__ import annotations

from ingero.errors import IngeroError
from ingero.units import format_bytes

MAX_NODE_BYTES = 32 << 20  # as Ingero 0.x; the sandbox of SQL answers with 16 MiB at most
MAX_TOTAL_BYTES = 96 << 20


class TooLargeError(IngeroError):
    """An answer is larger than it may be."""


class Budget:
    """Counts the bytes of answers that are being read, and of those that are kept."""

    def __init__(self, most_bytes: int = MAX_TOTAL_BYTES, max_node_bytes: int = MAX_NODE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._max_node_bytes = max_node_bytes
        self._all_bytes = 0  # of those that are read or kept
        self._reading: dict[int, int] = {}
        self._next = 0

    @property
    def max_node_bytes(self) -> int:
        """Largest size of one answer."""
        return self._max_node_bytes

    def begin(self) -> int:
        """Register an answer; its number."""
        self._next += 1
        self._reading[self._next] = 0
        return self._next

    def take(self, answer: int, size_bytes: int) -> None:
        """Count more bytes of an answer.

        Raises:
            TooLargeError: it is larger than one may be, or the largest while all together are.
        """
        self._reading[answer] += size_bytes
        self._all_bytes += size_bytes
        mine = self._reading[answer]
        if mine > self._max_node_bytes:
            raise TooLargeError(
                f"its answer is larger than {format_bytes(self._max_node_bytes)}",
                hint="ask for fewer rows or columns",
            )
        if self._all_bytes > self._most_bytes and mine == max(self._reading.values()):
            raise TooLargeError(
                f"all answers are larger than {format_bytes(self._most_bytes)}, and this is the largest",
                hint="ask for fewer rows or columns, or fewer nodes",
            )

    def end(self, answer: int, *, is_kept: bool) -> None:
        """End an answer: it is read, or given up."""
        size_bytes = self._reading.pop(answer)
        if not is_kept:
            self._all_bytes -= size_bytes
