"""An answer as a table that fits the terminal; where its columns do not, one row below the other."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from ingero.cli.live.lines import clean, fitted
from ingero.store.sql_text import Row, Value
from ingero.units import format_bytes, format_ns

_LEAST_TEXT, _MOST_TEXT = 12, 60  # cells of a column of texts where room is short, and at all
_GAP = "  "
_MOMENT_NS = 10**17  # 1973: what is larger is not a duration
_OF = r"(?:(?:sum|total|avg|min|max|median)\((?:\w+\.)?)?"  # an unnamed column is called like its expression
_TIME = re.compile(_OF + r"(?:\w+_ns|duration|timestamp|\w+_at)\)?", re.IGNORECASE)
_SIZE = re.compile(_OF + r"(?:\w+_)?bytes\)?", re.IGNORECASE)


def table_lines(columns: Sequence[str], rows: Sequence[Row], width: int) -> Iterator[str]:
    """The lines, none wider than `width` cells; width 0: as wide as it takes."""
    names = [clean(name) for name in columns]
    texts = [[_text(name, value) for name, value in zip(columns, row, strict=True)] for row in rows]
    is_right = [_are_numbers([row[place] for row in rows]) for place in range(len(names))]
    widths = _widths(names, texts, is_right, width)
    if widths is None:
        yield from _one_below_the_other(names, texts, width)
        return
    for line in (names, ["-" * size for size in widths], *texts):
        cells = (fitted(text, size, is_right=right) for text, size, right in zip(line, widths, is_right, strict=True))
        yield _GAP.join(cells).rstrip()


def _widths(
    names: Sequence[str], texts: Sequence[Sequence[str]], is_right: Sequence[bool], width: int
) -> list[int] | None:
    """Cells of each column, numbers and names whole; None where they do not fit."""
    sizes = [max(map(cell_len, column)) for column in zip(names, *texts, strict=True)]
    if not width:
        return sizes
    room = width - len(_GAP) * (len(names) - 1)
    least = [size if right else min(size, _LEAST_TEXT) for size, right in zip(sizes, is_right, strict=True)]
    if sum(least) > room:
        return None
    wide = [
        size if right else min(size, max(_MOST_TEXT, width // 2)) for size, right in zip(sizes, is_right, strict=True)
    ]
    while sum(wide) > room:  # the widest text gives way first
        widest = max((size - low, place) for place, (size, low) in enumerate(zip(wide, least, strict=True)))[1]
        wide[widest] -= 1
    return wide


def _one_below_the_other(names: Sequence[str], texts: Sequence[Sequence[str]], width: int) -> Iterator[str]:
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
    """A value for people: times and sizes with their units, a moment as local time, NULL as nothing."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, str):
        return clean(value)
    if _TIME.fullmatch(name):
        return _moment(value) if value > _MOMENT_NS else format_ns(value)
    if _SIZE.fullmatch(name):
        return format_bytes(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _moment(unix_ns: float) -> str:
    seconds, rest_ns = divmod(int(unix_ns), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))}.{rest_ns // 1_000_000:03d}"
