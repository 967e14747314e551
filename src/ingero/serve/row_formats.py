"""Rows as CSV and as lines of JSON, as they come: any number of them in little memory, numbers as they are stored."""

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
    text = io.StringIO()
    has_blobs = any(isinstance(value, bytes) for value in (rows[0] if rows else ()))
    lines = ([value.hex() if isinstance(value, bytes) else value for value in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(lines if has_blobs else rows)
    return text.getvalue()
