"""Sections of a screen and how many rows each gets: the important ones first; those without room are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from ingero.cli.live.lines import Line, More, flowed, padded, plain_more, width_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the screen.

    name: shown where the section does not fit. rank: the lower, the more important. min_rows: it is hidden below that.
    preferred_rows: what it gets before a less important section grows. max_rows: what it can use. body: its lines for a
    number of rows, at most that many.
    """

    name: str
    rank: int
    min_rows: int
    preferred_rows: int
    max_rows: int
    body: Callable[[int], list[Line]]


def lines_section(name: str, rank: int, lines: Sequence[Line]) -> Section:
    """A section that is shown whole or not at all."""
    count = len(lines)
    return Section(
        name=name, rank=rank, min_rows=count, preferred_rows=count, max_rows=count, body=lambda rows: list(lines)[:rows]
    )


def flow_section(
    name: str,
    rank: int,
    head: Line,
    items: Sequence[Line],
    width: int,
    *,
    more: More = plain_more,
    preferred_rows: int = 1,
    max_rows: int = 4,
) -> Section:
    """Items side by side behind a head, in at most `max_rows` lines."""
    indent = width_of(head)

    @cache  # called with the rows it can use, then with the rows it gets: often the same
    def body(rows: int) -> list[Line]:
        first, *rest = flowed(items, width - indent, rows, more=more) or [()]
        return [(*head, *first), *(((" " * indent, ""), *line) for line in rest)]

    used = len(body(max_rows))
    return Section(name=name, rank=rank, min_rows=1, preferred_rows=min(preferred_rows, used), max_rows=used, body=body)


def table_section(
    name: str,
    rank: int,
    head: Line,
    rows: Sequence[Line],
    more: Callable[[int], Line],
    *,
    preferred_rows: int,
    min_rows: int = 3,
) -> Section:
    """A table of a head and rows. more: the line that stands for the rows from an index on."""
    return long_section(
        name, rank, head, len(rows), lambda shown: rows[:shown], more, preferred_rows=preferred_rows, min_rows=min_rows
    )


def long_section(
    name: str,
    rank: int,
    head: Line,
    count: int,
    rows: Callable[[int], Sequence[Line]],
    more: Callable[[int], Line],
    *,
    preferred_rows: int,
    min_rows: int = 3,
) -> Section:
    """A table of `count` rows that makes only the rows it shows. rows: makes the first N rows."""

    def body(room: int) -> list[Line]:
        if count + 1 <= room:
            return [head, *rows(count)]
        shown = max(0, room - 2)
        return [head, *rows(shown), more(shown)][:room]

    max_rows = count + 1
    return Section(
        name=name,
        rank=rank,
        min_rows=min(min_rows, max_rows),
        preferred_rows=min(preferred_rows, max_rows),
        max_rows=max_rows,
        body=body,
    )


def stacked(sections: Sequence[Section], height: int) -> tuple[list[Line], list[str]]:
    """The lines of sections in their order, in at most `height` rows; and the names of those that found no room."""
    rows = [0] * len(sections)
    left = height
    by_rank = sorted(range(len(sections)), key=lambda index: sections[index].rank)
    for index in by_rank:
        if sections[index].min_rows <= left:
            rows[index] = sections[index].min_rows
            left -= rows[index]
    for wanted in ("preferred_rows", "max_rows"):
        for index in by_rank:
            if rows[index]:
                grown = min(left, max(0, getattr(sections[index], wanted) - rows[index]))
                rows[index] += grown
                left -= grown
    lines = [line for section, count in zip(sections, rows, strict=True) if count for line in section.body(count)]
    return lines, [
        section.name for section, count in zip(sections, rows, strict=True) if section.max_rows and not count
    ]


def beside(left: Sequence[Line], right: Sequence[Line], left_width: int, right_width: int, rule: str) -> list[Line]:
    """Two columns with a rule of one cell between them."""
    count = max(len(left), len(right))
    empty: Line = ()
    return [
        (
            *padded(left[i] if i < len(left) else empty, left_width),
            (f" {rule} ", "dim"),
            *padded(right[i] if i < len(right) else empty, right_width),
        )
        for i in range(count)
    ]
