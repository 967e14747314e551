"""The published names that every node has, and the meaning of columns across nodes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import apsw

from ingero.store import views
from ingero.store.opening.distrust import distrust
from ingero.store.sql_text import quoted
from ingero.store.user_sql.errors import SqlSyntaxError
from ingero.store.user_sql.guard import Guard
from ingero.store.user_sql.published import Catalogue, Statement
from ingero.store.writing.migrations import NEWEST_VERSION, migrate

# Columns whose numbers are given by each node, and equal ones of two nodes mean two things. Equal words: equal numbers
# of one node mean one thing, so that a join by them stays on a node.
_OF_ONE_NODE = {
    "process": "process",
    "session": "session",
    "cgroup_id": "cgroup",
    "culprit_cgroup_id": "cgroup",
    "incident": "incident",
    "stack_hash": "stack",  # of addresses in one process
}
_IDS = {
    "sessions": "session",
    "incidents": "incident",
    "stack_samples": "stack sample",
    "system_snapshots": "snapshot",
    "causal_chains": "chain",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The published names.

    columns: by view or table, by name in lower case, with the type that SQLite gives them. constant: tables that every
    ingero has, with the same rows.
    """

    columns: Mapping[str, Mapping[str, str]]
    constant: frozenset[str]

    def identity(self, table: str, column: str) -> str:
        """The kind of per-node number in a column; "": none."""
        if table in self.constant or table not in self.columns:
            return ""
        if column == "id":
            return _IDS.get(table, "")
        return "stack" if (table, column) == ("stack_traces", "hash") else _OF_ONE_NODE.get(column, "")

    def link(self, table: str, column: str) -> str:
        """The word of a column: a join of columns with the same word stays within one node; "": it may not."""
        return "node" if column == "node" else self.identity(table, column)


@cache
def names() -> Names:
    """The published names of this version."""
    db = empty_recording()
    try:
        columns: dict[str, dict[str, str]] = {}
        constant = set()
        for name, kind in list(
            db.execute(
                "SELECT name, type FROM main.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'raw%' "
                "UNION ALL SELECT name, type FROM temp.sqlite_schema WHERE type = 'view'"
            )
        ):
            if kind == "table":
                constant.add(str(name))
            columns[str(name)] = {
                str(column).lower(): str(of)
                for column, of in db.execute("SELECT name, type FROM pragma_table_info(?)", (name,))
            }
        return Names(columns=columns, constant=frozenset(constant))
    finally:
        db.close()


def empty_recording() -> apsw.Connection:
    """A recording in memory that holds nothing but the lookup tables; the published views are temporary ones."""
    db = apsw.Connection(":memory:")
    try:
        distrust(db)
        migrate(db, Path(":memory:"))
        views.make_temporary(db, are_all_there=True, version=NEWEST_VERSION)
    except BaseException:
        db.close()
        raise
    return db


class Judge:
    """Checks statements by names alone as a node does, so that nothing is sent that a node would refuse."""

    def __init__(self) -> None:
        db = empty_recording()
        try:
            self._catalogue = Catalogue(db)
        finally:
            db.close()
        self._tables = local_database()
        self._lock = threading.Lock()

    def check(self, sql: str, guard: Guard) -> Statement:
        """Check a statement as a node would.

        Raises:
            SqlError: a node would refuse it.
        """
        with self._lock:
            return self._catalogue.check(sql, guard)

    def columns(self, sql: str) -> tuple[tuple[str, str, str], ...]:
        """The columns of a statement's answer; see `answer_columns`."""
        with self._lock:
            return answer_columns(self._tables, sql)


@cache
def judge() -> Judge:
    """The judge of this process."""
    return Judge()


def local_database() -> apsw.Connection:
    """A database in memory with an empty table in place of each view, and the lookup tables."""
    db = apsw.Connection(":memory:")
    try:
        distrust(db)
        migrate(db, Path(":memory:"))
        for table, columns in names().columns.items():
            if table not in names().constant:
                db.execute(f"CREATE TEMP TABLE {quoted(table)} ({typed(columns)})")
    except BaseException:
        db.close()
        raise
    return db


def typed(columns: Mapping[str, str]) -> str:
    """Column definitions with the types that SQLite gives the columns in the view, which decide comparisons."""
    return ", ".join(f"{quoted(name)} {of}" for name, of in columns.items())


def answer_columns(db: apsw.Connection, sql: str) -> tuple[tuple[str, str, str], ...]:
    """For each column of a statement's answer its name and, if it is a plain column, that column's table and name.

    Raises:
        SqlSyntaxError: SQLite does not take it.
    """
    found: list[tuple[str, str, str]] = []

    def on_statement(cursor: apsw.Cursor, _: str, __: object) -> bool:
        full = cursor.description_full
        found.extend((name, table or "", (origin or "").lower()) for name, _, _, table, origin in full)
        return False  # nothing is run

    cursor = db.cursor()
    cursor.exec_trace = on_statement
    try:
        cursor.execute(sql)
    except apsw.ExecTraceAbort:
        pass
    except apsw.Error as error:
        raise SqlSyntaxError(str(error)) from error
    return tuple(found)
