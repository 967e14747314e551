"""Rows as a table that fits the terminal, or vertically where the columns do not fit."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from ingero.cli.live.lines import clean, fitted
from ingero.store.sql_text import Row, Value
from ingero.units import format_bytes, format_ns

_MIN_TEXT, _MAX_TEXT = 12, 60  # cells of a text column: where room is short, and at most
_GAP = "  "
_MIN_TIME_NS = 10**17  # 1973: what is larger is not a duration
_OF = (
    r"(?:(?:sum|total|avg|min|max|median)\((?:\w+\.)?)?"  # SQLite names a column without an alias after its expression
)
_TIME = re.compile(_OF + r"(?:\w+_ns|duration|timestamp|\w+_at)\)?", re.IGNORECASE)
_SIZE = re.compile(_OF + r"(?:\w+_)?bytes\)?", re.IGNORECASE)


def table_lines(columns: Sequence[str], rows: Sequence[Row], width: int) -> Iterator[str]:
    """The lines of the table, at most `width` cells wide; width 0: no limit."""
    names = [clean(name) for name in columns]
    texts = [[_text(name, value) for name, value in zip(columns, row, strict=True)] for row in rows]
    is_right = [_are_numbers([row[place] for row in rows]) for place in range(len(names))]
    widths = _widths(names, texts, is_right, width)
    if widths is None:
        yield from _vertical_lines(names, texts, width)
        return
    for line in (names, ["-" * size for size in widths], *texts):
        cells = (fitted(text, size, is_right=right) for text, size, right in zip(line, widths, is_right, strict=True))
        yield _GAP.join(cells).rstrip()


def _widths(
    names: Sequence[str], texts: Sequence[Sequence[str]], is_right: Sequence[bool], width: int
) -> list[int] | None:
    """The cells of each column, with numbers and names in full; None where they do not fit."""
    sizes = [max(map(cell_len, column)) for column in zip(names, *texts, strict=True)]
    if not width:
        return sizes
    room = width - len(_GAP) * (len(names) - 1)
    min_sizes = [size if right else min(size, _MIN_TEXT) for size, right in zip(sizes, is_right, strict=True)]
    if sum(min_sizes) > room:
        return None
    sizes_shown = [
        size if right else min(size, max(_MAX_TEXT, width // 2)) for size, right in zip(sizes, is_right, strict=True)
    ]
    while sum(sizes_shown) > room:  # the widest text gives way first
        widest = max((size - low, place) for place, (size, low) in enumerate(zip(sizes_shown, min_sizes, strict=True)))[
            1
        ]
        sizes_shown[widest] -= 1
    return sizes_shown


def _vertical_lines(names: Sequence[str], texts: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    size = max(map(cell_len, names))
    size = min(size, width // 2)
    for number, row in enumerate(texts, 1):
        yield fitted(f"--- row {number} ", width).rstrip()
        for name, text in zip(names, row, strict=True):
            if text:
                room = max(1, width - size - len(_GAP))
                yield f"{fitted(name, size)}{_GAP}{text if cell_len(text) <= room else fitted(text, room)}"


def _are_numbers(values: Sequence[Value]) -> bool:
    return any(isinstance(value, (int, float)) for value in values) and not any(
        isinstance(value, (str, bytes)) for value in values
    )


def _text(name: str, value: Value) -> str:
    """A value as text: durations and sizes with units, points in time as local time, NULL as nothing."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, str):
        return clean(value)
    if _TIME.fullmatch(name):
        return _local_time(value) if value > _MIN_TIME_NS else format_ns(value)
    if _SIZE.fullmatch(name):
        return format_bytes(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _local_time(unix_ns: float) -> str:
    seconds, rest_ns = divmod(int(unix_ns), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))}.{rest_ns // 1_000_000:03d}"
