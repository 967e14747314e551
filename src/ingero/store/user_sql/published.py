"""Checks the names in a user's statement against the published names alone, before it may touch a recording.

A second database is made in memory that has the published views and lookup tables as empty tables and nothing else.
SQLite itself resolves the statement there, so that aliases, subqueries and WITH mean what they mean to SQLite. The
authorizer of the recording could not tell `WITH events AS (SELECT * FROM raw_events)` from the view: for both it
is told that `events` reads.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

import apsw

from ingero.store import views
from ingero.store.opening import own_schema
from ingero.store.opening.distrust import distrust
from ingero.store.sql_text import quoted
from ingero.store.user_sql.errors import (
    EXAMPLE,
    SizeLimitError,
    SqlError,
    SqlRefusedError,
    SqlSyntaxError,
    UnknownColumnError,
    UnknownTableError,
)
from ingero.store.user_sql.guard import MAX_SQL_BYTES, Guard

_NO_TABLE = re.compile(r"no such table: (.*)")
_NO_COLUMN = re.compile(r"no such column: (?:\w+\.)?([^\s]+)")
_COMMENT = re.compile(r"--[^\n]*|/\*.*?(?:\*/|$)", re.DOTALL)

# Functions in the list of a SELECT whose answer depends on how many rows are stored.
AGGREGATES_OF_ALL_ROWS = frozenset(
    {"avg", "count", "median", "percentile", "percentile_cont", "percentile_disc", "sum", "total"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement that may run, and what it names itself (not what the views below it need).

    sql: without what follows its semicolon. columns: by view or table. functions: in lower case.
    """

    sql: str
    columns: Mapping[str, frozenset[str]]
    functions: frozenset[str]

    @property
    def adds_up(self) -> bool:
        """Whether the answer depends on how many rows there are."""
        return bool(self.functions & AGGREGATES_OF_ALL_ROWS)


class Catalogue:
    """The published names of one recording."""

    def __init__(self, recording: apsw.Connection) -> None:
        self.columns = _published(recording)
        self._db = apsw.Connection(":memory:")
        distrust(self._db)
        tables = (
            f"CREATE TABLE {quoted(name)} ({', '.join(map(quoted, columns))})" for name, columns in self.columns.items()
        )
        self._db.execute(";".join(tables))

    def close(self) -> None:
        """Close the second database."""
        self._db.close()

    def check(self, sql: str, guard: Guard) -> Statement:
        """Check that a statement is valid and reads only what is published.

        Raises:
            SqlError: it is not.
        """
        _check_text(sql)
        statements: list[str] = []
        with guard.on(self._db, published=self.columns):
            try:
                self._plan(sql, statements)
            except apsw.ExecTraceAbort:
                raise SqlRefusedError(
                    "one statement at a time: something follows the first semicolon", hint="ask them one by one"
                ) from None
            except apsw.Error as error:
                raise guard.error_of(error) or self._unresolved(sql, str(error)) from error
        if not statements:
            raise SqlRefusedError("there is no statement", hint=EXAMPLE)
        if not guard.has_selected:
            raise SqlRefusedError("only SELECT is allowed here: a recording is never changed", hint=EXAMPLE)
        read = {name: frozenset(columns) for name, columns in guard.read.items()}
        return Statement(sql=statements[0], columns=read, functions=frozenset(guard.functions))

    def _plan(self, sql: str, statements: list[str]) -> None:
        """Makes the plan of a statement and runs nothing; a second statement ends it."""

        def on_statement(_: apsw.Cursor, text: str, __: object) -> bool:
            if _COMMENT.sub("", text).strip(" \t\r\n\f;"):
                statements.append(text)
            return len(statements) <= 1

        cursor = self._db.cursor()
        cursor.exec_trace = on_statement
        list(cursor.execute(sql, explain=2))

    def _unresolved(self, sql: str, message: str) -> SqlError:
        if found := _NO_TABLE.fullmatch(message):
            return self._no_table(found[1])
        if found := _NO_COLUMN.fullmatch(message):
            name = found[1]
            asked = [table for table in self.columns if re.search(rf"\b{table}\b", sql, re.IGNORECASE)]
            columns = sorted({column for table in asked for column in self.columns[table]})
            if not columns:
                return SqlSyntaxError(message)
            return UnknownColumnError(name, difflib.get_close_matches(name, columns, n=2), columns)
        return SqlSyntaxError(message)

    def _no_table(self, name: str) -> SqlError:
        if name.rpartition(".")[2].lower().startswith("raw_"):
            raw = name.rpartition(".")[2].lower()
            ask = [view for view, table in views.TABLES.items() if table == raw and view in self.columns]
            text = f"{name} is internal and may change with any version"
            return SqlRefusedError(text, hint=f"ask {' or '.join(ask)}" if ask else f"ask {', '.join(self.columns)}")
        near = difflib.get_close_matches(name.rpartition(".")[2].lower(), list(self.columns), n=2)
        return UnknownTableError(name, near, self.columns)


def _published(recording: apsw.Connection) -> dict[str, tuple[str, ...]]:
    """The views, then the lookup tables, with their columns. What else a file has is not published."""
    ours = views.TABLES.keys() | own_schema.tables().keys()
    columns: dict[str, list[str]] = {}
    for name, column in recording.execute(
        "SELECT t.name, c.name FROM (SELECT name, type, 'main' AS place FROM main.sqlite_schema WHERE type = 'table' "
        "UNION ALL SELECT name, type, 'temp' FROM temp.sqlite_schema WHERE type = 'view') t, "
        "pragma_table_info(t.name, t.place) c WHERE t.name NOT LIKE 'raw\\_%' ESCAPE '\\' "
        "ORDER BY t.type DESC, t.name, c.cid"
    ):
        if name in ours:
            columns.setdefault(str(name), []).append(str(column))
    return {name: tuple(names) for name, names in columns.items()}


def _check_text(sql: str) -> None:
    try:
        size_bytes = len(sql.encode())
    except UnicodeEncodeError as error:
        raise SqlSyntaxError("it is not valid UTF-8") from error
    if size_bytes > MAX_SQL_BYTES:
        raise SizeLimitError(f"the statement is longer than {MAX_SQL_BYTES >> 10} KiB")
    if "\0" in sql:
        raise SqlSyntaxError("it holds a NUL character")
