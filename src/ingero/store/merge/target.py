"""Output file of a merge: a recording without indexes until all its rows are there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from ingero.store.opening.distrust import confine, distrust
from ingero.store.opening.own_schema import INDEXES_AT_END, index_texts, session_indexes
from ingero.store.sql_text import quoted
from ingero.store.writing.migrations import migrate
from ingero.store.writing.recording import MAX_INDEXED_EVENTS
from ingero.store.writing.whole_file import whole_file

# Of every connection that writes the file. Nobody reads it before it is whole, and then it is synced: a commit that is
# on the disk earlier, or one that could be taken back after a crash, is worth nothing.
SETTINGS = ("journal_mode = memory", "synchronous = off", "cache_size = -32000")


@contextmanager
def new_recording(path: Path, *, has_indexes: bool = True) -> Iterator[Path]:
    """An empty recording under another name, without indexes; it becomes `path` when all went well, else it vanishes.

    has_indexes: whether they are made at the end.

    Raises:
        NewFileError: there is such a file, another ingero is writing it, or its folder takes none.
    """
    with whole_file(path) as partial:
        _create(partial)
        yield partial
        _finish(partial, has_indexes=has_indexes)


def _create(path: Path) -> None:
    db = _open(path)
    try:
        migrate(db, path)
        for name in index_texts():
            db.execute(f"DROP INDEX IF EXISTS {quoted(name)}")
        db.execute("CREATE INDEX merging_text ON raw_strings(text)")
    finally:
        db.close()


def _finish(path: Path, *, has_indexes: bool) -> None:
    """Create all indexes at the end: made row by row, they would take longer than the rows."""
    db = _open(path)
    try:
        db.execute("DROP INDEX merging_text")
        if not has_indexes:
            return
        ((events,),) = db.execute("SELECT count(*) FROM raw_events")
        for name, text in index_texts().items():
            if name not in INDEXES_AT_END or int(events) <= MAX_INDEXED_EVENTS:
                db.execute(text)
        for text in session_indexes().values():
            db.execute(text)
    finally:
        db.close()


def _open(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    distrust(db)
    confine(db, is_reading=False)
    for setting in SETTINGS:
        list(db.execute(f"PRAGMA {setting}"))
    return db
