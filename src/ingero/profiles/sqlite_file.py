"""Reads a foreign SQLite file without trusting its schema: only real tables, no views, triggers or functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import apsw

from ingero.profiles.columns import cleaned, printable
from ingero.profiles.model import Notes, ProfileError
from ingero.store.opening.distrust import StepLimit, confine, distrust, require_safe_sqlite

Cell = int | float | str | bytes | None

_MAX_INT = 1 << 62
_UNREADABLE = (apsw.Error, UnicodeDecodeError)  # the second for names in a damaged schema


class SqliteFile:
    """A file open for reading; a context manager. tables: the columns of each real table.

    Raises:
        ProfileError: the file is damaged from its start.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        require_safe_sqlite()
        uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"  # no log, no lock: the file stays as it is
        try:
            self._db = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
            distrust(self._db)
            StepLimit(self._db, path.stat().st_size)
            list(self._db.execute("PRAGMA query_only = 1"))
            confine(self._db, is_reading=True)
            self.tables = self._read_tables()
        except _UNREADABLE as error:
            raise ProfileError(
                f"{name} cannot be read: {printable(str(error))}", hint="export the profile again"
            ) from error

    def __enter__(self) -> SqliteFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()

    def _read_tables(self) -> dict[str, frozenset[str]]:
        found = self._db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' LIMIT 10000")
        names = [str(name) for name, sql in found if not str(sql).upper().lstrip().startswith("CREATE VIRTUAL")]
        columns = "SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 0"  # generated columns would compute
        return {name: frozenset(str(column) for (column,) in self._db.execute(columns, (name,))) for name in names}

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with these columns."""
        return table in self.tables and self.tables[table] >= set(columns)

    def rows(self, table: str, columns: Sequence[str], notes: Notes) -> Iterator[tuple[Cell, ...]]:
        """The rows of a table, up to the first damage; None for missing columns. Texts are bytes."""
        if table not in self.tables:
            return
        chosen = ", ".join(self._expression(table, column) for column in columns)
        try:
            yield from self._db.execute(f'SELECT {chosen} FROM "{table}"')
        except _UNREADABLE as error:
            notes.lacks.append(
                f"{self.name} is damaged: table {table} is read up to there only ({printable(str(error))})"
            )

    def _expression(self, table: str, column: str) -> str:
        if column not in self.tables[table]:
            return "NULL"
        # a text that is not UTF-8 would be an error
        return f'CASE typeof("{column}") WHEN \'text\' THEN CAST("{column}" AS BLOB) ELSE "{column}" END'


def whole(value: Cell) -> int | None:
    """A cell as an integer; None where it is not a number, or beyond 62 bits."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    try:
        found = int(value) if value is not None else None
    except (ValueError, OverflowError):
        return None
    return found if found is not None and -_MAX_INT < found < _MAX_INT else None


def text(value: Cell) -> str:
    """A cell as text."""
    return cleaned(value.decode("utf-8", "replace")) if isinstance(value, bytes) else ""
