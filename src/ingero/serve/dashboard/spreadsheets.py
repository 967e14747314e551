"""Tables as CSV files for download; programs use JSON, which has every text as stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import StreamingResponse

from ingero.serve.structured.row_formats import csv_texts


def download(name: str, texts: Iterable[str]) -> StreamingResponse:
    """A response that downloads a file."""
    headers = {"content-disposition": f'attachment; filename="ingero-{name}.csv"'}
    return StreamingResponse(texts, media_type="text/csv; charset=utf-8", headers=headers)


def sheet_of_objects(objects: Iterable[Mapping[str, Any]]) -> str:
    """A CSV row for each object; a nested object becomes columns with its keys."""
    flat = [_flat(one) for one in objects]
    columns = list(dict.fromkeys(name for one in flat for name in one))
    return "".join(csv_texts(columns, (tuple(map(one.get, columns)) for one in flat)))


def _flat(one: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in one.items():
        if isinstance(value, Mapping):
            found |= value
        else:
            found[name] = value
    return found
