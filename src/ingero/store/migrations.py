"""Which version a database has, and how it gets to the newest one."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from pathlib import Path

import apsw

from ingero.store import older_values, vocabulary
from ingero.store.errors import ForeignDatabaseError, NewerDatabaseError, OlderIngeroError
from ingero.store.own_schema import require_own_schema
from ingero.store.sql_text import quoted, sql_text

APPLICATION_ID = 0x696E6772  # "ingr"; tells a recording from other SQLite files and from those of Ingero 0.x

Migration = Callable[[apsw.Connection], None]

# Entry n leads from version n + 1 to n + 2. Version 1 is schema.sql as it was first released; a change of a table is an
# entry here and the same change in schema.sql. Views and lookup tables need no entry: they are made anew each time.
MIGRATIONS: tuple[Migration, ...] = (older_values.name_what_was_given_up,)
NEWEST_VERSION = 1 + len(MIGRATIONS)


class Kind(enum.Enum):
    """Whose file it is."""

    EMPTY = "empty"
    RECORDING = "recording"
    OLDER_INGERO = "older ingero"
    FOREIGN = "foreign"


def kind_of(db: apsw.Connection) -> Kind:
    """Whose file an open database is."""
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
        raise NewerDatabaseError(path, version, newest)
    return version


def migrate(db: apsw.Connection, path: Path, *, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring a database that may be written to the newest version, in one transaction; an empty one gets everything.

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
            for step in migrations[version - 1 :]:
                step(db)
            require_own_schema(db, path)
        _make_views(db)
        vocabulary.fill(db)
        db.execute(f"PRAGMA user_version = {newest}")


def _make_views(db: apsw.Connection) -> None:
    for (name,) in list(db.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")):
        db.execute(f"DROP VIEW {quoted(name)}")
    db.execute(sql_text("views.sql"))
