"""The share of a recording's calls that have a row of their own, and the rows that the size limit has pruned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import apsw


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many calls are stored. calls: exact count. stored: how many of them have a row in events."""

    calls: int
    stored: int

    @property
    def is_whole(self) -> bool:
        """Whether every call has a row."""
        return self.stored >= self.calls


def stored_share(db: apsw.Connection, sources: Sequence[int]) -> Share:
    """The share of the calls of these sources, over the whole file."""
    numbers = ",".join(str(int(source)) for source in sources)
    ((calls, stored),) = db.execute(
        f"SELECT coalesce(sum(count), 0), coalesce(sum(recorded), 0) FROM raw_op_stats WHERE source IN ({numbers})"
    )
    return Share(calls=calls, stored=stored)


def events_pruned(db: apsw.Connection) -> tuple[int, int]:
    """How many rows of single calls were pruned, and up to which time (Unix ns); (0, 0): none."""
    ((rows, until_ns),) = db.execute(
        "SELECT coalesce(sum(rows), 0), coalesce(max(until_ns), 0) FROM raw_pruned "
        "WHERE name = 'raw_events' AND kind = 'removed'"
    )
    return rows, until_ns
