"""Rows as CSV and as lines of JSON, streamed: any number of them in little memory.

JSON is for programs: values as they are stored. CSV is opened in spreadsheets, in which no text may be a formula: a
traced program chooses its name, its threads' and its files', and `=HYPERLINK(...)` must not run for whoever looks into
them (OWASP, "CSV Injection"). `web/src/table.tsx` does the same for the tables that the page makes.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ingero.foreign_text import visible
from ingero.serve.structured.json_text import for_programs
from ingero.store.sql_text import Row, Value

_ROWS_AT_ONCE = 500
_FORMULA = ("=", "+", "-", "@")  # a tab or carriage return before one is an escape here


def csv_texts(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """A line of names, then the rows; NULL is empty, blobs are in hexadecimal.

    A text that would be a formula gets a quote before it, and control characters are visible escapes.
    """
    yield _csv([tuple(columns)])
    for some in _batches(rows):
        yield _csv(some)


def json_texts(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """One JSON object per row and line; blobs are in base64. A name that stands twice gets a number: `pid`, `pid_2`."""
    names = distinct_names(columns)
    encode = msgspec.json.Encoder().encode
    for some in _batches(rows):
        yield "".join(f"{for_programs(encode(dict(zip(names, row, strict=True))).decode())}\n" for row in some)


def distinct_names(columns: Sequence[str]) -> list[str]:
    """The names, made distinct by a number where one is repeated, ignoring case."""
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
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(tuple(map(_cell, row)) for row in rows)
    return text.getvalue()


def _cell(value: Value) -> Value:
    if isinstance(value, bytes):
        return value.hex()
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
