"""Users' SQL on a recording: one sandbox for the command line, AI assistants and the dashboard."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw

from ingero.serve.text.share_notes import share_notes
from ingero.store.errors import OF_THE_FILE, reading_error
from ingero.store.opening.opening import open_database
from ingero.store.sql_text import Row, Value
from ingero.store.user_sql.errors import (
    SizeLimitError,
    SqlError,
    SqlRefusedError,
    SqlSyntaxError,
    TimeLimitError,
    UnknownColumnError,
    UnknownTableError,
)
from ingero.store.user_sql.guard import Guard
from ingero.store.user_sql.published import Catalogue

__all__ = [
    "Answer",
    "Rows",
    "SizeLimitError",
    "SqlError",
    "SqlRefusedError",
    "SqlSyntaxError",
    "TimeLimitError",
    "UnknownColumnError",
    "UnknownTableError",
    "count_rows",
    "first_rows_note",
    "open_rows",
    "run_sql",
]

# Of an answer that is held in memory, as JSON: eight clients at once, each with its rows and their text, take 256 MiB.
_MAX_ANSWER_BYTES = 16 << 20
_ESCAPED_BYTES = 6  # of a control character in JSON, the most of any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a statement. notes: what to know about the numbers, one sentence each."""

    columns: tuple[str, ...]
    rows: list[Row]
    is_truncated: bool
    elapsed_ns: int
    notes: tuple[str, ...]


class Rows:
    """The answer row by row; `columns` and `notes` are known before the first."""

    def __init__(self, columns: tuple[str, ...], rows: Iterator[Row], notes: tuple[str, ...], guard: Guard) -> None:
        self.columns = columns
        self.notes = notes
        self._rows = rows
        self._guard = guard

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def paused(self) -> AbstractContextManager[None]:
        """While inside, the time limit is suspended: the reader of the rows may be slow."""
        return self._guard.paused()


def run_sql(path: Path, sql: str, *, max_rows: int = 10_000, timeout_s: float = 10.0) -> Answer:
    """The answer to one SELECT over the published views, in memory.

    Raises:
        SqlError: the statement is refused, wrong, or needs too much time or room.
        StoreError: the database cannot be read.
    """
    begin_ns = time.monotonic_ns()
    with open_rows(path, sql, timeout_s=timeout_s) as rows:
        answer = list(itertools.islice(_small_enough(rows), max_rows))
        is_truncated = next(iter(rows), None) is not None
    notes = rows.notes
    if is_truncated:
        notes += (first_rows_note(max_rows),)
    return Answer(
        columns=rows.columns,
        rows=answer,
        is_truncated=is_truncated,
        elapsed_ns=time.monotonic_ns() - begin_ns,
        notes=notes,
    )


def first_rows_note(most: int) -> str:
    """The note on an answer that was cut."""
    return f"These are the first {most:,} rows; there are more."


def count_rows(path: Path, sql: str, *, timeout_s: float) -> int | None:
    """How many rows a statement answers; None where that takes too long or cannot be asked.

    SQLite leaves out what only the rows themselves need, so this is far faster than reading them.
    """
    try:
        with open_rows(path, sql, timeout_s=timeout_s, around="SELECT count(*) FROM ({0})") as rows:
            return int(str(next(iter(rows))[0]))
    except SqlError:
        return None


@contextmanager
def open_rows(
    path: Path,
    sql: str,
    *,
    timeout_s: float,
    way_out: str = "",
    around: str = "{0}",
    clock: Callable[[], int] = time.monotonic_ns,
) -> Iterator[Rows]:
    """The answer to one SELECT, to be read inside the block, of any length; timeout_s 0: as long as it takes.

    way_out: added to the hint of a time limit error. around: called with the statement once it is checked.

    Raises:
        SqlError: the statement is refused, wrong, or needs too much time or room; also while rows are read.
        StoreError: the database cannot be read.
    """
    guard = Guard(timeout_s=timeout_s, clock=clock, way_out=way_out)
    opened = open_database(path)
    opened.limit.lift()
    try:
        catalogue = Catalogue(opened.db)
        try:
            statement = catalogue.check(sql, guard)
        finally:
            catalogue.close()
        lacks = (f"The file lacks {opened.missing_end}.",) if opened.missing_end else ()
        notes = (*lacks, *share_notes(opened, statement))
        text = around.replace("{0}", f"{statement.sql.rstrip().rstrip(';')}\n")
        with guard.on(opened.db):
            columns, rows = _start(path, opened.db, text, guard)
            yield Rows(columns, rows, notes, guard)
    except OF_THE_FILE as error:
        raise reading_error(path, error) from error
    finally:
        opened.db.close()


def _start(path: Path, db: apsw.Connection, sql: str, guard: Guard) -> tuple[tuple[str, ...], Iterator[Row]]:
    columns: list[str] = []

    def on_statement(cursor: apsw.Cursor, _: str, __: object) -> bool:
        columns.extend(name for name, *_ in cursor.get_description())
        return True

    cursor = db.cursor()
    cursor.exec_trace = on_statement
    try:
        cursor.execute(sql, can_cache=False)
    except apsw.Error as error:
        raise _error(path, guard, error) from error
    return tuple(columns), _translated(path, guard, cursor)


def _translated(path: Path, guard: Guard, cursor: apsw.Cursor) -> Iterator[Row]:
    try:
        yield from cursor
    except apsw.Error as error:
        raise _error(path, guard, error) from error
    except UnicodeDecodeError as error:
        raise SqlSyntaxError("a text of the answer is not valid UTF-8; hex(column) shows it") from error


def _error(path: Path, guard: Guard, error: apsw.Error) -> Exception:
    known = guard.error_of(error)
    if known is not None:
        return known
    return SqlSyntaxError(str(error)) if isinstance(error, apsw.SQLError) else reading_error(path, error)


def _small_enough(rows: Rows) -> Iterator[Row]:
    size_bytes = 0
    for row in rows:
        size_bytes += sum(map(_json_bytes, row))
        if size_bytes > _MAX_ANSWER_BYTES:
            raise SizeLimitError(f"the answer is larger than {_MAX_ANSWER_BYTES >> 20} MiB")
        yield row


def _json_bytes(value: Value) -> int:
    if isinstance(value, bytes):
        return 2 * len(value)
    if isinstance(value, str):
        return len(value) if value.isascii() and value.isprintable() else _ESCAPED_BYTES * len(value)
    return 8
