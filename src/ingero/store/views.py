"""The text of the published views, for queries that need a part of it."""

from __future__ import annotations

import re

import apsw

from ingero.store.sql_text import sql_text

_VIEW = re.compile(r"^CREATE VIEW (\w+) AS\n(.*?);", re.MULTILINE | re.DOTALL)
_QUERIES: dict[str, str] = dict(_VIEW.findall(sql_text("views.sql")))

# The table that each published view reads its rows from.
TABLES: dict[str, str] = {name: re.findall(r"^FROM (\w+)", text, re.MULTILINE)[0] for name, text in _QUERIES.items()}


def make_temporary(db: apsw.Connection, *, are_all_there: bool) -> None:
    """Give a connection the published views. Those that a file has itself are never asked: they may be anything.

    are_all_there: the tables are those of this build; of others the views that lack a table or a column are left out.
    """
    with db:
        for name, text in _QUERIES.items():
            db.execute(f"CREATE TEMP VIEW {name} AS {text}")
    for name in () if are_all_there else _QUERIES:
        try:
            list(db.execute(f"SELECT * FROM temp.{name} LIMIT 0"))
        except apsw.SQLError:
            db.execute(f"DROP VIEW temp.{name}")


def query(name: str) -> str:
    """The SELECT of a published view.

    Raises:
        KeyError: there is no such view.
    """
    return _QUERIES[name]
