"""Limits a failure to one record, or one part of a second; it never ends the recording.

Everything here comes from untrusted processes, or from a kernel that is newer than this agent. Whatever
raises is given up, counted, and said once with where it happened; the rest goes on.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

RECORDS, PARTS = "records_not_understood", "parts_not_understood"
_MAX_TRIALS = 256  # of one batch, which holds 8,192 records: a dozen for each that is to blame


class Salvage:
    """Runs work that may raise, and counts the dropped data by counter."""

    def __init__(self) -> None:
        self._drops: Counter[str] = Counter()
        self._said: set[tuple[str, str]] = set()

    def records(self, name: str, consume: Callable[[np.ndarray[Any, Any]], None], batch: np.ndarray[Any, Any]) -> None:
        """Hands a batch over; if that raises, its halves, down to the single records that raise.

        consume: takes records, and appends what it makes of them last. name: of their ring.
        """
        pending, trials = [batch], 0
        while pending:
            mine = pending.pop()
            trials += 1
            try:
                consume(mine)
            except Exception as error:
                if len(mine) == 1 or trials > _MAX_TRIALS:
                    self._give_up(RECORDS, name, error, len(mine))
                else:
                    half = len(mine) // 2
                    pending += [mine[half:], mine[:half]]

    def part(self, name: str, work: Callable[[], object]) -> None:
        """Runs one part of a second's work; if that raises, the part is missing from this second."""
        try:
            work()
        except Exception as error:
            self._give_up(PARTS, name, error, 1)

    def drops(self) -> dict[str, int]:
        """Dropped data since the last call, by counter."""
        drops, self._drops = self._drops, Counter()
        return dict(drops)

    def _give_up(self, counter: str, name: str, error: Exception, count: int) -> None:
        self._drops[counter] += count
        kind = (name, type(error).__name__)
        if kind not in self._said:
            self._said.add(kind)
            logger.warning(
                "%s: %d given up (%s: %.200s); this is a bug, please report it with the log of --debug",
                name, count, type(error).__name__, error, exc_info=logger.isEnabledFor(logging.DEBUG),
            )  # fmt: skip
