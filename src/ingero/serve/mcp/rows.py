"""Answers to SQL for an assistant: texts marked as data, with a limited total size."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

from ingero.serve.mcp.fitting import cut_text, json_bytes
from ingero.serve.mcp.untrusted import harmless, traced
from ingero.serve.sql import Rows, first_rows_note, open_rows

_MAX_ROWS_BYTES = 55_000  # of the rows; with the text of some of them, an answer has 90 kB at most
_MAX_CELL = 4096  # the frames of a stack
_MAX_TEXT_ROWS = 50  # of the text beside the structured rows
TIMEOUT_S = 10.0


def sql_answer(path: Path, query: str, limit: int, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Columns, then rows as far as they fit.

    Raises:
        SqlError: the statement is refused, wrong, or needs too much time or room.
        StoreError: the database cannot be read.
    """
    begin_ns = time.monotonic_ns()
    with open_rows(path, query, timeout_s=timeout_s) as answer:
        rows, is_full = _fitting(answer, limit)
        is_truncated = is_full or next(iter(answer), None) is not None
    notes = list(answer.notes)
    if is_full:
        notes.append(
            f"Only the first {len(rows)} rows fit into an answer. For the rest: ask for fewer columns, "
            f"sum with GROUP BY, or end the statement with ORDER BY ... LIMIT {max(len(rows), 1)} OFFSET {len(rows)}."
        )
    elif is_truncated:
        notes.append(first_rows_note(limit))
    return {
        "columns": [harmless(name) for name in answer.columns],
        "rows": rows,
        "row_count": len(rows),
        "is_truncated": is_truncated,
        "elapsed_ns": time.monotonic_ns() - begin_ns,
        "notes": [traced(note, most=_MAX_CELL) for note in notes],
    }


def _fitting(answer: Rows, limit: int) -> tuple[list[list[object]], bool]:
    """At most so many rows, none read beyond what fits; whether one did not."""
    rows: list[list[object]] = []
    left = _MAX_ROWS_BYTES
    for row in itertools.islice(answer, limit):
        cells = [_cell(value) for value in row]
        left -= json_bytes(cells) + 2
        if left < 0:
            return rows, True
        rows.append(cells)
    return rows, False


def sql_text(answer: dict[str, Any]) -> str:
    """The first rows, separated by tabs, then the notes."""
    lines = ["\t".join(map(_plain, row)) for row in [answer["columns"], *answer["rows"][:_MAX_TEXT_ROWS]]]
    text, _ = cut_text("\n".join(lines))
    more = len(answer["rows"]) - (text.count("\n") if text else 0)
    if more > 0:
        text += f"\nand {more} rows more in the structured answer"
    return "\n".join([text, *(f"note: {one}" for one in answer["notes"])])


def _cell(value: object) -> object:
    if isinstance(value, bytes):
        return traced(value.hex(), most=_MAX_CELL)
    return traced(value, most=_MAX_CELL) if isinstance(value, str) else value


def _plain(cell: object) -> str:
    return "NULL" if cell is None else str(cell)
