"""Checks that a file's tables are those of ingero: ordinary ones for reading, identical ones for recording."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import apsw

from ingero.store.errors import HostileDatabaseError, OtherBuildError
from ingero.store.older import earlier_names
from ingero.store.sql_text import sql_text

# A recording holds some 110 objects whose texts are 90 KB.
_MAX_OBJECTS, _MAX_SQL_BYTES = 1_000, 1 << 20

_OBJECT = re.compile(r"^CREATE (TABLE|INDEX) (?:IF NOT EXISTS )?(\w+)")
# Scanned from left to right, so that quotes in a comment and comments in quotes are what SQLite takes them for.
_PIECE = re.compile(r"('(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\])|--[^\n]*|/\*.*?(?:\*/|$)", re.DOTALL)
_ONE_COLUMN = re.compile(r"CREATE INDEX (\w+) ON (\w+)\((\w+)\)")
_SPACE_AT_SIGN = re.compile(r"\s*([(),])\s*")


@cache
def tables() -> dict[str, str]:
    """The tables of schema.sql with their normalized texts (see `_plain`)."""
    return _texts("schema.sql", "TABLE")


@cache
def _indexes() -> dict[str, str]:
    of_merged = {name: _plain(text) for name, text in session_indexes().items()}
    return _texts("schema.sql", "INDEX") | _texts("indexes.sql", "INDEX") | of_merged


def _texts(file: str, kind: str) -> dict[str, str]:
    statements = (_plain(text) for text in sql_text(file).split(";\n"))
    found = ((_OBJECT.match(text), text) for text in statements)
    return {match[2]: text for match, text in found if match and match[1] == kind}


def _plain(sql: str) -> str:
    """A statement without comments and needless space, because comments may change from version to version."""
    text = " ".join(_PIECE.sub(lambda match: match[1] or " ", sql).replace("IF NOT EXISTS ", "").split())
    return _SPACE_AT_SIGN.sub(r"\1", text).removesuffix(";")


@cache
def _verbatim() -> frozenset[tuple[str, str]]:
    """The tables with their texts as SQLite keeps them: comparing these takes a tenth of checking each table."""
    texts = re.findall(r"^(CREATE TABLE (\w+) .*?);\n", sql_text("schema.sql"), re.MULTILINE | re.DOTALL)
    return frozenset((name, text) for text, name in texts)


@cache
def own_columns() -> dict[str, dict[str, str]]:
    """The columns of each table of schema.sql with their defaults as SQL; "" for none."""
    model = apsw.Connection(":memory:")
    try:
        model.execute(sql_text("schema.sql"))
        found: dict[str, dict[str, str]] = {}
        for table, column, default, not_null in model.execute(
            'SELECT s.name, c.name, c.dflt_value, c."notnull" FROM sqlite_schema s, pragma_table_info(s.name) c '
            "WHERE s.type = 'table'"
        ):
            found.setdefault(str(table), {})[str(column)] = str(default or ("" if not_null else "NULL"))
        return found
    finally:
        model.close()


# Made when a recording closes, dropped while one is written.
INDEXES_AT_END = tuple(_texts("indexes.sql", "INDEX"))


@cache
def index_texts() -> dict[str, str]:
    """The statements that make the indexes, by name: those of schema.sql, then those made at the end."""
    text = f"{sql_text('schema.sql')}\n{sql_text('indexes.sql')}"
    found = re.findall(r"^(CREATE INDEX (?:IF NOT EXISTS )?(\w+) .*?);", text, re.MULTILINE | re.DOTALL)
    return {str(name): str(statement) for statement, name in found}


@cache
def session_indexes() -> dict[str, str]:
    """The statements of the additional indexes of a merged recording, one for each index of one column.

    With them a reader of one node finds a time without reading other nodes' rows.
    """
    found = (_ONE_COLUMN.fullmatch(text) for text in index_texts().values())
    return {
        f"{one[1]}_by_session": f"CREATE INDEX {one[1]}_by_session ON {one[2]}(session, {one[3]})"
        for one in found
        if one and "session" in own_columns()[one[2]]
    }


def require_tables(db: apsw.Connection, path: Path, *, schema: str = "main") -> bool:
    """For a reader: require that each object with the name of one of our tables is an ordinary table.

    Returns whether all tables are those of this build.

    Raises:
        HostileDatabaseError: a view, a virtual or a computed table does, or the schema is far larger than ours.
    """
    _require_small_schema(db, path, schema)
    if _verbatim() <= set(db.execute(f"SELECT name, sql FROM {schema}.sqlite_schema")):
        return True
    for name, kind, is_strict in db.execute(
        "SELECT name, type, strict FROM pragma_table_list WHERE schema = ?", (schema,)
    ):
        if name not in tables() and name not in earlier_names.TODAY:
            continue
        if kind != "table":
            raise HostileDatabaseError(path, f"{name} is a {kind} in it, not a table")
        if not is_strict:
            raise HostileDatabaseError(path, f"its table {name} takes values of any type")
        if any(db.execute("SELECT 1 FROM pragma_table_xinfo(?, ?) WHERE hidden", (name, schema))):
            raise HostileDatabaseError(path, f"a column of its table {name} is computed")
    return False


def require_tables_of_older(db: apsw.Connection, path: Path) -> None:
    """Require that a database of Ingero 0.x, attached as `old`, has only ordinary tables.

    Raises:
        HostileDatabaseError: one is not.
    """
    _require_small_schema(db, path, "old")
    for name, kind in list(db.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'old'")):
        if kind == "virtual" or any(db.execute("SELECT 1 FROM pragma_table_xinfo(?, 'old') WHERE hidden", (name,))):
            raise HostileDatabaseError(path, f"{name!r} is not an ordinary table")


def _require_small_schema(db: apsw.Connection, path: Path, schema: str) -> None:
    objects, size_bytes = next(iter(db.execute(f"SELECT count(*), sum(length(sql)) FROM {schema}.sqlite_schema")))
    if objects > _MAX_OBJECTS or (size_bytes or 0) > _MAX_SQL_BYTES:
        raise HostileDatabaseError(path, f"it has {objects:,} tables, views and indexes")


def require_own_schema(db: apsw.Connection, path: Path) -> None:
    """For a recorder: require that each table and index is, word for word, one of ingero's, and that none is missing.

    A trigger, a CHECK or an index on an expression would run foreign SQL with the recorder's rights. Views are not
    checked: they never run here, and are made anew.

    Raises:
        HostileDatabaseError: there is something that ingero does not make.
        OtherBuildError: another build made its tables.
    """
    _require_small_schema(db, path, "main")
    found = {}
    for kind, name, sql in db.execute("SELECT type, name, sql FROM main.sqlite_schema WHERE sql IS NOT NULL"):
        # SQLite goes by the text and not by the kind beside it
        is_view = sql.startswith("CREATE VIEW ")
        if name in tables() or name in _indexes():
            found[name] = _plain(sql)
        elif kind == "table" and (today := earlier_names.TODAY.get(name)):
            raise OtherBuildError(path, f"{today}, but {name}")
        elif not is_view and not sql.startswith("CREATE TABLE sqlite_stat"):
            raise HostileDatabaseError(path, f"it holds the {kind} {name!r}, which ingero does not make")
    for name, text in tables().items():
        if found.get(name) != text:
            raise OtherBuildError(path, _difference(db, name))
    for name in found.keys() & _indexes().keys():
        if found[name] != _indexes()[name]:
            raise OtherBuildError(path, f"{name} of this build")


def _difference(db: apsw.Connection, table: str) -> str:
    """The table or column that a file of another build lacks."""
    columns = {str(name) for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,))}
    if not columns:
        return table
    model = apsw.Connection(":memory:")
    try:
        model.execute(tables()[table])
        wanted = [str(name) for (name,) in model.execute("SELECT name FROM pragma_table_info(?)", (table,))]
    finally:
        model.close()
    return next((f"{table}.{name}" for name in wanted if name not in columns), f"{table} of this build")
