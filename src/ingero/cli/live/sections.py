"""Parts of a screen, and how many rows each gets: the important first, and what does not fit is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from ingero.cli.live.lines import Line, More, flowed, padded, plain_more, width_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the screen.

    name: what to call it where it does not fit. rank: the lower, the more important.
    least, usual, most: rows below which it says nothing, that it gets before a less important one grows, that it can
    use. body: its lines for a number of rows, at most so many.
    """

    name: str
    rank: int
    least: int
    usual: int
    most: int
    body: Callable[[int], list[Line]]


def lines_section(name: str, rank: int, lines: Sequence[Line]) -> Section:
    """A section that is shown whole or not at all."""
    count = len(lines)
    return Section(name=name, rank=rank, least=count, usual=count, most=count, body=lambda rows: list(lines)[:rows])


def flow_section(
    name: str,
    rank: int,
    head: Line,
    items: Sequence[Line],
    width: int,
    *,
    more: More = plain_more,
    usual: int = 1,
    most: int = 4,
) -> Section:
    """Items side by side behind a head, in at most `most` lines."""
    indent = width_of(head)

    @cache  # asked for what it can use, then for what it gets, which is often the same
    def body(rows: int) -> list[Line]:
        first, *rest = flowed(items, width - indent, rows, more=more) or [()]
        return [(*head, *first), *(((" " * indent, ""), *line) for line in rest)]

    used = len(body(most))
    return Section(name=name, rank=rank, least=1, usual=min(usual, used), most=used, body=body)


def table_section(
    name: str, rank: int, head: Line, rows: Sequence[Line], more: Callable[[int], Line], *, usual: int, least: int = 3
) -> Section:
    """A head and rows; more: what is said instead of the rows from an index on."""
    return long_section(name, rank, head, len(rows), lambda shown: rows[:shown], more, usual=usual, least=least)


def long_section(
    name: str,
    rank: int,
    head: Line,
    count: int,
    rows: Callable[[int], Sequence[Line]],
    more: Callable[[int], Line],
    *,
    usual: int,
    least: int = 3,
) -> Section:
    """A table of `count` rows, of which only as many are made as are shown. rows: the first so many."""

    def body(room: int) -> list[Line]:
        if count + 1 <= room:
            return [head, *rows(count)]
        shown = max(0, room - 2)
        return [head, *rows(shown), more(shown)][:room]

    most = count + 1
    return Section(name=name, rank=rank, least=min(least, most), usual=min(usual, most), most=most, body=body)


def stacked(sections: Sequence[Section], height: int) -> tuple[list[Line], list[str]]:
    """The lines of sections in their order, in at most `height` rows; and the names of those that found no room."""
    rows = [0] * len(sections)
    left = height
    by_rank = sorted(range(len(sections)), key=lambda index: sections[index].rank)
    for index in by_rank:
        if sections[index].least <= left:
            rows[index] = sections[index].least
            left -= rows[index]
    for wanted in ("usual", "most"):
        for index in by_rank:
            if rows[index]:
                grown = min(left, max(0, getattr(sections[index], wanted) - rows[index]))
                rows[index] += grown
                left -= grown
    lines = [line for section, count in zip(sections, rows, strict=True) if count for line in section.body(count)]
    return lines, [section.name for section, count in zip(sections, rows, strict=True) if section.most and not count]


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
