"""The text of the published views, for queries that need a part of it."""

from __future__ import annotations

import re

from ingero.store.sql_text import sql_text

_VIEW = re.compile(r"^CREATE VIEW (\w+) AS\n(.*?);", re.MULTILINE | re.DOTALL)
_QUERIES: dict[str, str] = dict(_VIEW.findall(sql_text("views.sql")))

# The table that each published view reads its rows from.
TABLES: dict[str, str] = {name: re.findall(r"^FROM (\w+)", text, re.MULTILINE)[0] for name, text in _QUERIES.items()}


def query(name: str) -> str:
    """The SELECT of a published view.

    Raises:
        KeyError: there is no such view.
    """
    return _QUERIES[name]
