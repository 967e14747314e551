"""The text of the published views, for queries that need a part of it."""

from __future__ import annotations

import re

import apsw

from ingero.store.older import earlier_names
from ingero.store.older.older_values import columns_of, has_older_values
from ingero.store.opening.own_schema import own_columns
from ingero.store.sql_text import sql_text

_VIEW = re.compile(r"^CREATE VIEW (\w+) AS\n(.*?);", re.MULTILINE | re.DOTALL)
_QUERIES: dict[str, str] = dict(_VIEW.findall(sql_text("views.sql")))

# The table that each published view reads its rows from.
TABLES: dict[str, str] = {name: re.findall(r"^FROM (\w+)", text, re.MULTILINE)[0] for name, text in _QUERIES.items()}

# Which others only look up names in: a file of the first builds has the rows without the names.
_LOOKED_UP = frozenset({"raw_kernels"})


def make_temporary(db: apsw.Connection, *, are_all_there: bool, version: int) -> None:
    """Give a connection the published views. A file's own views are never used: they may be anything.

    are_all_there: the tables are those of this build; else columns that this build added are supplied, and views of
    missing tables are left out. version: the file's; values that earlier versions worded otherwise are shown in today's
    words.
    """
    if not are_all_there or has_older_values(version):
        _add_columns(db, version)
    with db:
        for name, text in _QUERIES.items():
            db.execute(f"CREATE TEMP VIEW {name} AS {text}")
    for name in () if are_all_there else _QUERIES:
        try:
            list(db.execute(f"SELECT * FROM temp.{name} LIMIT 0"))
        except apsw.SQLError:
            db.execute(f"DROP VIEW temp.{name}")


def _add_columns(db: apsw.Connection, version: int) -> None:
    """Shows a table of an earlier build under today's name, with today's columns and values; missing ones get defaults.

    A temporary view of the table's name hides the table. A column without a default is an error for its readers.
    """
    for name, wanted in own_columns().items():
        stored, found = earlier_names.find(db, name, wanted, schema="main")
        older = columns_of(version, name, found.keys())
        if stored and (stored != name or older or any(found.get(column) != column for column in wanted)):
            columns = {column: default for column, default in wanted.items() if default} | found | older
            texts = ", ".join(f"{text} AS {column}" for column, text in columns.items())
            db.execute(f"CREATE TEMP VIEW {name} AS SELECT {texts} FROM main.{stored}")
        elif not stored and name in _LOOKED_UP:
            texts = ", ".join(f"NULL AS {column}" for column in wanted)
            db.execute(f"CREATE TEMP VIEW {name} AS SELECT {texts} WHERE false")


def query(name: str) -> str:
    """The SELECT of a published view.

    Raises:
        KeyError: there is no such view.
    """
    return _QUERIES[name]
