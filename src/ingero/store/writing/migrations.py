"""Versions of a database, and migrations to the newest one."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import apsw

from ingero import __version__
from ingero.store import vocabulary
from ingero.store.errors import ForeignDatabaseError, NewerDatabaseError, OlderIngeroError, OtherBuildError
from ingero.store.older import older_values
from ingero.store.opening.own_schema import require_own_schema
from ingero.store.sql_text import quoted, sql_text

APPLICATION_ID = 0x696E6772  # "ingr"; tells a recording from other SQLite files and from those of Ingero 0.x

_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?(?:\.?(?:a|b|rc|dev|post)\d{1,6})?")

Migration = Callable[[apsw.Connection], None]

# Entry n leads from version n + 1 to n + 2. Version 1 is schema.sql as it was first released; a change of a table is an
# entry here and the same change in schema.sql. Views and lookup tables need no entry: they are made anew each time.
MIGRATIONS: tuple[Migration, ...] = (older_values.name_what_was_given_up,)
NEWEST_VERSION = 1 + len(MIGRATIONS)


class Kind(enum.Enum):
    """Which product wrote a file."""

    EMPTY = "empty"
    RECORDING = "recording"
    OLDER_INGERO = "older ingero"
    FOREIGN = "foreign"


def kind_of(db: apsw.Connection) -> Kind:
    """Which product wrote an open database."""
    if pragma(db, "application_id") == APPLICATION_ID:
        return Kind.RECORDING
    names = {str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema")}
    if not names:
        return Kind.EMPTY
    columns = {str(name) for (name,) in db.execute("SELECT name FROM pragma_table_info('events')")}
    is_older = {"timestamp", "pid", "source", "op", "duration"} <= columns and "sources" in names
    return Kind.OLDER_INGERO if is_older else Kind.FOREIGN


def pragma(db: apsw.Connection, name: str, *, schema: str = "main") -> int:
    """The number that a PRAGMA without argument answers."""
    (value,) = next(iter(db.execute(f"PRAGMA {schema}.{name}")))
    assert isinstance(value, int)
    return value


def check_version(db: apsw.Connection, path: Path, *, newest: int = NEWEST_VERSION, schema: str = "main") -> int:
    """The version of a recording.

    Raises:
        NewerDatabaseError: this program does not know that version.
        ForeignDatabaseError: no version of ingero gave it that number.
    """
    version = pragma(db, "user_version", schema=schema)
    if version < 1:
        raise ForeignDatabaseError(path)
    if version > newest:
        raise NewerDatabaseError(path, version, newest, _written_by(db, schema))
    return version


def _written_by(db: apsw.Connection, schema: str) -> str:
    """The version of ingero that last recorded into a newer file; "" if unknown or not later than this one."""
    written = ""
    with suppress(apsw.SQLError):  # its tables may be others
        hidden = list(db.execute("SELECT 1 FROM pragma_table_xinfo('raw_sessions', ?) WHERE hidden", (schema,)))
        tables = f"SELECT 1 FROM {schema}.sqlite_schema WHERE type = 'table' AND name = 'raw_sessions'"
        if not hidden and any(db.execute(tables)):  # which computes nothing
            rows = db.execute(f"SELECT ingero_ver FROM {schema}.raw_sessions ORDER BY rowid DESC LIMIT 1")
            written = "".join(str(version) for (version,) in rows)
    return written if _release(written) > _release(__version__) else ""


def _release(version: str) -> tuple[int, ...]:
    match = _RELEASE.fullmatch(version)
    return tuple(int(part or 0) for part in match.groups()) if match else ()


def migrate(db: apsw.Connection, path: Path, *, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring a writable database to the newest version, in one transaction; an empty one gets all tables.

    Raises:
        NewerDatabaseError, OlderIngeroError, ForeignDatabaseError, OtherBuildError, HostileDatabaseError: the file is
            not ours to write; nothing was written.
    """
    kind = kind_of(db)
    if kind is Kind.OLDER_INGERO:
        raise OlderIngeroError(path)
    if kind is Kind.FOREIGN:
        raise ForeignDatabaseError(path)
    newest = 1 + len(migrations)
    version = 0 if kind is Kind.EMPTY else check_version(db, path, newest=newest)
    with db:
        if version == 0:
            db.execute(sql_text("schema.sql"))
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        else:
            _run(migrations[version - 1 :], db, path)
            require_own_schema(db, path)
        _make_views(db)
        vocabulary.fill(db)
        db.execute(f"PRAGMA user_version = {newest}")


def _run(migrations: Sequence[Migration], db: apsw.Connection, path: Path) -> None:
    try:
        for step in migrations:
            step(db)
    except apsw.SQLError as error:  # "no such column: note": the first builds gave their number to fewer tables
        text = str(error).removeprefix("SQLError: ")
        missing = text.removeprefix("no such ") if text.startswith("no such ") else f"tables to migrate ({text})"
        raise OtherBuildError(path, missing) from error


def _make_views(db: apsw.Connection) -> None:
    for (name,) in list(db.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")):
        db.execute(f"DROP VIEW {quoted(name)}")
    db.execute(sql_text("views.sql"))
