"""Tables as CSV files for spreadsheets, in which no text is a formula.

A traced program chooses its name, its threads' and its files': `=HYPERLINK(...)` must not run in the spreadsheet of
whoever looks into them (OWASP, "CSV Injection"). Programs ask for JSON, or use `ingero query --csv`: both have every
text as it is stored. `web/src/table.tsx` does the same for the tables that the page makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import StreamingResponse

from ingero.serve.row_formats import csv_texts
from ingero.store.sql_text import Row

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def download(name: str, texts: Iterable[str]) -> StreamingResponse:
    """A file to keep."""
    headers = {"content-disposition": f'attachment; filename="ingero-{name}.csv"'}
    return StreamingResponse(texts, media_type="text/csv; charset=utf-8", headers=headers)


def sheet_of_rows(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """A line of names, then the rows, with a quote before each text that would be a formula; numbers stay."""
    return csv_texts([_inert(name) for name in columns], (tuple(map(_inert, row)) for row in rows))


def sheet_of_objects(objects: Iterable[Mapping[str, Any]]) -> str:
    """A row for each object; an object inside one becomes columns with its keys."""
    flat = [_flat(one) for one in objects]
    columns = list(dict.fromkeys(name for one in flat for name in one))
    return "".join(sheet_of_rows(columns, (tuple(map(one.get, columns)) for one in flat)))


def _flat(one: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in one.items():
        if isinstance(value, Mapping):
            found |= value
        else:
            found[name] = value
    return found


def _inert(value: Any) -> Any:  # any value of a table
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
