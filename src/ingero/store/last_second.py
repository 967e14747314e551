"""Progress of an ongoing recording, for health checks, which ask each minute and cannot wait for a full reader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import apsw

from ingero.store.errors import reading_error
from ingero.store.opening.opening import open_database
from ingero.units import SECOND_NS

# A recorder commits every half second; ten missed commits mean that it is gone.
LIVE_NS = 5 * SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of the newest recording in a file; Unix times. stopped_ns: None while it is ongoing or if it was killed.

    second_ns: the end of the last second that the loop has written; None: none yet. It stands still when the loop does;
    the writer's own heartbeat does not.
    """

    started_ns: int
    stopped_ns: int | None
    second_ns: int | None


# Casts, because what a file holds may be anything. By order, not by time: the clock may have been set back.
_SESSION = (
    "SELECT session, CAST(started_ns AS INTEGER), CAST(stopped_ns AS INTEGER) FROM raw_sessions "
    "ORDER BY session DESC LIMIT 1"
)
_SECOND = "SELECT CAST(time_ns AS INTEGER) FROM raw_cpu_seconds WHERE session = ? ORDER BY id DESC LIMIT 1"


def progress(path: Path) -> Progress | None:
    """The progress of the newest recording; None: the file has none of this product.

    Raises:
        StoreError: there is no such file, it is not a recording, is damaged, may not be read, or is too new.
    """
    opened = open_database(path)
    try:
        if opened.older_version:
            return None
        for session, started_ns, stopped_ns in opened.db.execute(_SESSION):
            seconds = [second_ns for (second_ns,) in opened.db.execute(_SECOND, (session,))]
            return Progress(
                started_ns=started_ns or 0, stopped_ns=stopped_ns, second_ns=seconds[0] if seconds else None
            )
        return None
    except apsw.Error as error:
        raise reading_error(path, error) from error
    finally:
        opened.db.close()
