"""Base of all queries on a recording: the file, what it can hold, and rows as records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import apsw

from ingero.store import views
from ingero.store.errors import MissingColumnError, NotRecordedError
from ingero.store.older import earlier_names, legacy
from ingero.store.opening.opening import Opened
from ingero.store.records import Window
from ingero.store.writing.tables import Value

_Record = TypeVar("_Record")

_MISSING = ("no such column", "no such table")


class Questions:
    """One open database; the modules beside this one query it through `_rows` and `_records`."""

    def __init__(self, path: Path, opened: Opened) -> None:
        self.path = path
        self.version = opened.version
        self.older_version = opened.older_version
        self.has_exact_totals = opened.has_exact_totals
        self.missing_end = opened.missing_end
        self._db = opened.db
        # a file that an earlier build began has not all of them
        self._tables = {name for (name,) in self._rows("SELECT name FROM main.sqlite_schema WHERE type = 'table'")}

    @property
    def connection(self) -> apsw.Connection:
        """The read-only connection, for users' own SQL over the published views."""
        return self._db

    def is_recorded(self, table: str) -> bool:
        """Whether the file can hold rows of a published view or a raw_ table at all."""
        name = table if table.startswith("raw_") else views.TABLES.get(table, table)
        if not name.startswith("raw_"):
            return True
        if self.older_version:
            return name in legacy.RECORDED
        return name in self._tables or earlier_names.TABLES.get(name) in self._tables

    def _records(
        self, record: type[_Record], sql: str, window: Window | None = None, *, table: str = "", **values: Value
    ) -> list[_Record]:
        return list(records(record, self._rows(sql, window, table=table, **values)))

    # A row is a tuple of what the SELECT beside it names; its types are known only there.
    def _rows(
        self, sql: str, window: Window | None = None, *, table: str = "", **values: Value
    ) -> list[tuple[Any, ...]]:
        return list(self._each(sql, window, table=table, **values))

    def _each(
        self, sql: str, window: Window | None = None, *, table: str = "", **values: Value
    ) -> Iterator[tuple[Any, ...]]:
        """Rows of a query one by one: a hundred thousand tuples take more memory than the arrays made of them."""
        if table and not self.is_recorded(table):
            by = f"Ingero {self.older_version}" if self.older_version else "the build of ingero that began this file"
            raise NotRecordedError(table.removeprefix("raw_").replace("_", " "), by)
        if window is not None:
            values |= {"begin": window.begin_ns, "end": window.end_ns}
        try:
            return iter(self._db.execute(sql, values))
        except apsw.SQLError as error:
            if not str(error).startswith(_MISSING):
                raise
            raise MissingColumnError(str(error)) from error


def records(record: type[_Record], rows: Iterable[tuple[Any, ...]]) -> Iterator[_Record]:
    """Rows as records, one at a time; their columns are the record's fields in order."""
    names = tuple(record.__dataclass_fields__)  # type: ignore[attr-defined]  # every caller passes a dataclass
    return (record(**dict(zip(names, row, strict=True))) for row in rows)


def fields_of(record: type) -> str:
    """The fields of a record as the column list of a SELECT."""
    return ", ".join(record.__dataclass_fields__)  # type: ignore[attr-defined]  # every caller passes a dataclass


def listed(numbers: Iterable[int]) -> str:
    """Numbers for an IN ( )."""
    return ",".join(str(int(number)) for number in numbers)
