"""Which version a database has, and how it gets to the newest one."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from pathlib import Path

import apsw

from ingero.store import vocabulary
from ingero.store.errors import ForeignDatabaseError, NewerDatabaseError, OlderIngeroError, OtherBuildError
from ingero.store.sql_text import sql_text

APPLICATION_ID = 0x696E6772  # "ingr"; tells a recording from other SQLite files and from those of Ingero 0.x

Migration = Callable[[apsw.Connection], None]

# Entry n leads from version n + 1 to n + 2. Version 1 is schema.sql as it was first released; a change of a table is an
# entry here and the same change in schema.sql. Views and lookup tables need no entry: they are made anew each time.
MIGRATIONS: tuple[Migration, ...] = ()


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
    names = {str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if not names:
        return Kind.EMPTY
    columns = {str(name) for (name,) in db.execute("SELECT name FROM pragma_table_info('events')")}
    is_older = {"timestamp", "pid", "source", "op", "duration"} <= columns and "sources" in names
    return Kind.OLDER_INGERO if is_older else Kind.FOREIGN


def pragma(db: apsw.Connection, name: str) -> int:
    """The number that a PRAGMA without argument answers."""
    (value,) = next(iter(db.execute(f"PRAGMA {name}")))
    assert isinstance(value, int)
    return value


def check_version(db: apsw.Connection, path: Path, *, newest: int = 1 + len(MIGRATIONS)) -> int:
    """The version of a recording.

    Raises:
        NewerDatabaseError: this program does not know that version.
    """
    version = pragma(db, "user_version")
    if version > newest:
        raise NewerDatabaseError(path, version, newest)
    return version


def migrate(db: apsw.Connection, path: Path, *, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring a database that may be written to the newest version, in one transaction; an empty one gets everything.

    Raises:
        NewerDatabaseError, OlderIngeroError, ForeignDatabaseError, OtherBuildError: the file is not ours to write.
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
            _require_tables(db, path)
        _make_views(db)
        vocabulary.fill(db)
        db.execute(f"PRAGMA user_version = {newest}")


def _require_tables(db: apsw.Connection, path: Path) -> None:
    from ingero.store.tables import BY_NAME  # noqa: PLC0415  # numpy, which a reader of one row does without

    for table in BY_NAME.values():
        types = dict(db.execute("SELECT name, type FROM pragma_table_info(?)", (table.name,)))
        missing = next((name for name in table.columns if name not in types), None)
        if missing:
            raise OtherBuildError(path, f"{table.name}.{missing}" if types else table.name)
        if types.get("period_s", "REAL") != "REAL":
            raise OtherBuildError(path, f"fractions of a second in {table.name}.period_s")


def _make_views(db: apsw.Connection) -> None:
    for (name,) in list(db.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")):
        db.execute(f'DROP VIEW "{name}"')
    db.execute(sql_text("views.sql"))
