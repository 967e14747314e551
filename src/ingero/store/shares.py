"""How many of the calls of a recording have a row of their own, and which rows the size limit has taken since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import apsw


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """calls: exact. stored: of them, those with a row in events."""

    calls: int
    stored: int

    @property
    def is_whole(self) -> bool:
        """Every call has its row."""
        return self.stored >= self.calls


def stored_share(db: apsw.Connection, sources: Sequence[int]) -> Share:
    """The share of the calls of these sources, over the whole file."""
    numbers = ",".join(str(int(source)) for source in sources)
    ((calls, stored),) = db.execute(
        f"SELECT coalesce(sum(count), 0), coalesce(sum(recorded), 0) FROM raw_op_stats WHERE source IN ({numbers})"
    )
    return Share(calls=calls, stored=stored)


def events_removed(db: apsw.Connection) -> tuple[int, int]:
    """How many rows of single calls are gone, and up to which time (unix ns); (0, 0): none."""
    ((rows, until_ns),) = db.execute(
        "SELECT coalesce(sum(rows), 0), coalesce(max(until_ns), 0) FROM raw_pruned "
        "WHERE name = 'raw_events' AND kind = 'removed'"
    )
    return rows, until_ns
