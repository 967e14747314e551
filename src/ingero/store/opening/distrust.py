"""Hardens a connection to an untrusted file before its first statement."""

from __future__ import annotations

import apsw

from ingero.store.errors import OldSqliteError

# 3.51.3 fixes a log that two connections can damage; 3.50.2 and 3.50.3 fix memory errors that a statement or a file
# can cause (CVE-2025-6965, CVE-2025-7709). docs/adr/0007-apsw.md
MIN_SQLITE = 3_051_003

_MiB = 1 << 20

_SWITCHES = (
    (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1),
    (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0),  # only the file's own: temporary ones and views still work
    (apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0),
    (apsw.SQLITE_DBCONFIG_DQS_DML, 0),  # "cudaMalloc" is a column that does not exist, not a text
    (apsw.SQLITE_DBCONFIG_DQS_DDL, 0),
)

_LIMITS = {
    apsw.SQLITE_LIMIT_LENGTH: 16 * _MiB,  # a value or a row: the longest that is written is a stack of some 64 KiB
    apsw.SQLITE_LIMIT_SQL_LENGTH: _MiB,  # the longest of ours are the views, 40 KiB
    apsw.SQLITE_LIMIT_COLUMN: 500,  # of a table: ours have up to 50; schemas of others are refused as too wide
    apsw.SQLITE_LIMIT_EXPR_DEPTH: 200,
    apsw.SQLITE_LIMIT_ATTACHED: 1,  # an older database
    apsw.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
    apsw.SQLITE_LIMIT_WORKER_THREADS: 0,
}

# Limit for all connections of the process together: eight clients at once, and the recorder's 16 MB of pages.
_MAX_MEMORY_BYTES = 384 * _MiB

# Steps of SQLite's machine, some 20 to 50 million a second. The longest statements of ours take 0.3 for each byte of
# the file (explain, exports); a hundred times as many are taken only by a hostile file.
_STEPS_AT_ONCE = 1_000_000
_MIN_STEPS = 50_000_000
_STEPS_PER_BYTE = 30


def require_safe_sqlite() -> None:
    """Refuse an SQLite that a file can damage.

    Raises:
        OldSqliteError: it is older than the first that is safe.
    """
    if _number(apsw.sqlite_lib_version()) < MIN_SQLITE:
        raise OldSqliteError(apsw.sqlite_lib_version())


def _number(version: str) -> int:
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    return major * 1_000_000 + minor * 1_000 + patch


def distrust(db: apsw.Connection) -> None:
    """Set a new connection so that nothing in its file runs, reads other files, or makes large values."""
    apsw.hard_heap_limit(_MAX_MEMORY_BYTES)
    for switch, value in _SWITCHES:
        db.config(switch, value)
    for limit, value in _LIMITS.items():
        db.limit(limit, value)
    db.drop_modules(None)  # virtual tables: a file could hold damaged ones under our names
    list(db.execute("PRAGMA mmap_size = 0; PRAGMA cell_size_check = 1"))


# Actions that no statement of ours takes once a file is open. VACUUM INTO writes another file, and asks as ATTACH.
_NEVER = frozenset(
    {
        *(apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH, apsw.SQLITE_CREATE_VTABLE, apsw.SQLITE_DROP_VTABLE),
        *(apsw.SQLITE_CREATE_TRIGGER, apsw.SQLITE_CREATE_TEMP_TRIGGER, apsw.SQLITE_ANALYZE),
    }
)
_READING = frozenset(
    {apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_RECURSIVE, apsw.SQLITE_FUNCTION, apsw.SQLITE_PRAGMA}
)


def confine(db: apsw.Connection, *, is_reading: bool) -> None:
    """Forbid opening or writing other files from here on; where a file is only read, forbid all but reading."""

    def judge(action: int, *_: str | None) -> int:
        is_refused = action not in _READING if is_reading else action in _NEVER
        return apsw.SQLITE_DENY if is_refused else apsw.SQLITE_OK

    db.authorizer = judge


class StepLimit:
    """Ends each statement of a connection that takes far more steps than a file of its size can need."""

    def __init__(self, db: apsw.Connection, file_bytes: int, *, least_steps: int = _MIN_STEPS) -> None:
        self._db = db
        self._most = (least_steps + _STEPS_PER_BYTE * file_bytes) // _STEPS_AT_ONCE
        self._looks = 0
        db.exec_trace = self._begin
        db.set_progress_handler(self._must_stop, _STEPS_AT_ONCE, id=self)

    def _begin(self, *_: object) -> bool:
        self._looks = 0
        return True

    def _must_stop(self) -> bool:
        self._looks += 1
        return self._looks > self._most

    def lift(self) -> None:
        """Stop counting steps: another guard watches the connection from here on."""
        self._db.exec_trace = None
        self._db.set_progress_handler(None, id=self)
