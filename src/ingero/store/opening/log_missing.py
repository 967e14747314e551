"""Detects a recording that lacks its write-ahead log, so that its end, or all of it, is missing."""

from __future__ import annotations

from pathlib import Path

import apsw

from ingero.store.opening.side_files import has_log
from ingero.units import format_moment

_WRITE_VERSION_AT, _IN_LOG_MODE = 18, 2  # of the file's header (sqlite.org/fileformat2.html, "File format version")


def missing_end(path: Path, db: apsw.Connection) -> str:
    """What is missing in an open recording; "" if nothing is known to be missing.

    A recording that has ended has no log any more; that of an ongoing or killed one lies beside the file.
    """
    if not _is_in_log_mode(path) or has_log(path) or path.with_name(f"{path.name}.lock").exists():
        return ""
    ((seen_ns, is_open),) = db.execute(
        "SELECT max(last_seen_ns), coalesce(max(stopped_ns IS NULL), 1) FROM raw_sessions"
    )
    if not is_open:
        return ""
    what = f"what was recorded after {format_moment(seen_ns)}" if isinstance(seen_ns, int) else "all that was recorded"
    return f"{what}: it was in the log, {path.name}-wal, which is not beside the file; was it copied without it?"


def _is_in_log_mode(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(_WRITE_VERSION_AT + 1)[_WRITE_VERSION_AT:] == bytes([_IN_LOG_MODE])
    except OSError:
        return False
