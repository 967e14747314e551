"""Rows as CSV and as lines of JSON, as they come: any number of them in little memory, values as they are stored.

That is for programs. What people open in a spreadsheet, where a name could be a formula, is `dashboard.spreadsheets`.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ingero.store.sql_text import Row

_ROWS_AT_ONCE = 500


def csv_texts(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """A line of names, then the rows; NULL is empty, blobs are in hexadecimal."""
    yield _csv([tuple(columns)])
    for some in _batches(rows):
        yield _csv(some)


def json_texts(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """One JSON object per row and line; blobs are in base64. A name that stands twice gets a number: `pid`, `pid_2`."""
    names = distinct_names(columns)
    encode = msgspec.json.Encoder().encode
    for some in _batches(rows):
        yield "".join(f"{encode(dict(zip(names, row, strict=True))).decode()}\n" for row in some)


def distinct_names(columns: Sequence[str]) -> list[str]:
    """The names, with a number where one has stood before, in whatever case."""
    names: list[str] = []
    taken: set[str] = set()
    for column in columns:
        name = next(
            name
            for name in itertools.chain([column], (f"{column}_{number}" for number in itertools.count(2)))
            if name.lower() not in taken
        )
        taken.add(name.lower())
        names.append(name)
    return names


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    rows = iter(rows)
    while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        yield some


def _csv(rows: list[Row]) -> str:
    if any(isinstance(value, bytes) for row in rows for value in row):
        rows = [tuple(value.hex() if isinstance(value, bytes) else value for value in row) for row in rows]
    text = _lines(rows, "\n")
    if "\r" not in text:
        return text
    # before Python 3.13 it is quoted only where it ends lines, and readers take a bare one for the end of a line
    return "".join(_lines([row], "\r\n").removesuffix("\r\n") + "\n" for row in rows)


def _lines(rows: list[Row], end: str) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end).writerows(rows)
    return text.getvalue()
