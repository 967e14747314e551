"""Texts of this package's SQL files, quoting of SQL names, and types of SQLite values and rows."""

from __future__ import annotations

from importlib import resources
from typing import TypeAlias

Value: TypeAlias = "int | float | str | bytes | None"
Row: TypeAlias = "tuple[Value, ...]"


def quoted(name: str) -> str:
    """A name of a table, view, column or index, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def sql_text(name: str) -> str:
    """The text of an SQL file of this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
