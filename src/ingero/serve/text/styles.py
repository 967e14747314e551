"""How lines look on a terminal: a few styles in the sixteen colors that every terminal has.

A line is made as plain text, its styles are marked afterwards, and its escapes are written last, once everything in the
text that could act on a terminal has been made visible. The sixteen colors are the terminal's own: each theme, light or
dark, has set them so that they can be read on it.
"""

from __future__ import annotations

import enum
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from ingero.foreign_text import visible


class Style(enum.Enum):
    """The style of a piece of a line."""

    HIGH = enum.auto()
    MEDIUM = enum.auto()
    LOW = enum.auto()
    OK = enum.auto()
    WARNING = enum.auto()
    FAILED = enum.auto()
    HEADING = enum.auto()
    COMMAND = enum.auto()
    DIM = enum.auto()


Span: TypeAlias = "tuple[str, Style | None]"
Line: TypeAlias = "str | tuple[Span, ...]"

_UNDER_THE_MARGIN = 2  # where a broken line goes on that begins at the margin
_NEXT_COLUMNS = 2  # where the rest of a row begins, its own gap before it
_GAP = re.compile(r" {2,}(?=\S)")  # between columns
_TEXT = re.compile(r" *(?:\d+\. |[A-Z][a-z]+ {2,}(?=\S))?")  # what stands before it: a number, a section's title

# Select graphic rendition, ECMA-48. No blue, white or black, which some common theme has on a background that swallows
# them; nothing bold in yellow or cyan, which many terminals then show in the bright variant that white swallows.
_SELECTIONS: Mapping[Style, str] = MappingProxyType({
    Style.HIGH: "1;31",
    Style.MEDIUM: "33",
    Style.LOW: "36",
    Style.OK: "32",
    Style.WARNING: "33",
    Style.FAILED: "1;31",
    Style.HEADING: "1",
    Style.COMMAND: "36",
    Style.DIM: "2",
})  # fmt: skip


def has_color(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Whether lines are styled: on a terminal, unless NO_COLOR says no; anywhere, where FORCE_COLOR says so.

    Source: no-color.org and force-color.org: what counts is that the variable is not empty.
    """
    if environ.get("NO_COLOR"):
        return False
    return bool(environ.get("FORCE_COLOR")) or (is_terminal and environ.get("TERM") not in (None, "", "dumb"))


def painted(line: Line, *, is_colored: bool) -> str:
    """The line for a terminal. Whatever foreign text is in it is shown and does nothing; the escapes are all ours."""
    if isinstance(line, str):
        return visible(line)
    return "".join(_painted(text, style if is_colored else None) for text, style in line)


def plain(line: Line) -> str:
    """The text alone."""
    return line if isinstance(line, str) else "".join(text for text, _ in line)


def marked(line: str, *marks: tuple[int, int, Style]) -> Line:
    """The line with some of its pieces in a style. marks: (begin, end, style), in order, none over another."""
    spans: list[Span] = []
    done = 0
    for begin, end, style in marks:
        spans += [(line[done:begin], None), (line[begin:end], style)]
        done = end
    return tuple(span for span in (*spans, (line[done:], None)) if span[0])


def cells(text: str) -> int:
    """Columns that a text takes on a terminal, where a wide character takes two."""
    if text.isascii():
        return len(text)
    return len(text) + sum(unicodedata.east_asian_width(char) in "WF" for char in text)


def folded(line: Line, width: int) -> Iterator[Line]:
    """The line in lines of at most `width` columns, broken between words, and goes on below where its text begins.

    A row of a table is broken between two of its columns, at the same place as those above and below it. What has a
    command in it is left to the terminal: copied, it has to be one line.
    """
    spans = ((line, None),) if isinstance(line, str) else line
    text = plain(line)
    begin = _TEXT.match(text)
    assert begin is not None  # also of an empty line
    indent = begin.end() or _UNDER_THE_MARGIN
    if cells(text) <= width or indent > width // 2 or any(style is Style.COMMAND for _, style in spans):
        yield line
        return
    if _GAP.search(text, begin.end()):
        yield from _row(spans, text, begin.end(), width)
        return
    done, room = 0, width
    for end in _breaks(text, begin.end(), width, width - indent):
        piece = tuple(_part(spans, done, end))
        yield piece if room == width else ((" " * indent, None), *piece)
        done, room = end + 1, width - indent


def _row(spans: Sequence[Span], text: str, begin: int, width: int) -> Iterator[Line]:
    """Broken where gaps begin, which they do below one another: numbers stand at the right of their columns."""
    done, room = 0, width
    gaps = [gap.start() for gap in _GAP.finditer(text, begin)]
    while True:
        fitting = [at for at in gaps if done < at <= done + room]
        end = fitting[-1] if fitting and len(text) - done > room else len(text)
        piece = tuple(_part(spans, done, end))
        yield ((" " * (width - room), None), *piece) if done else piece
        if end == len(text):
            return
        done, room = end, width - _NEXT_COLUMNS


def _breaks(text: str, begin: int, first: int, others: int) -> Iterator[int]:
    """The places of the spaces at which lines end, and the end. first, others: columns of the lines."""
    done, last, room = 0, begin, first
    for space in (*(place for place, char in enumerate(text) if char == " " and place > begin), len(text)):
        if cells(text[done:space]) > room and last > max(done, begin):
            yield last
            done, room = last + 1, others
        last = space
    yield len(text)


def _part(spans: Sequence[Span], begin: int, end: int) -> Iterator[Span]:
    """The spans between two offsets of the whole text."""
    at = 0
    for text, style in spans:
        part = text[max(0, begin - at) : max(0, end - at)]
        if part:
            yield part, style
        at += len(text)


def _painted(text: str, style: Style | None) -> str:
    shown = visible(text)
    return shown if style is None else f"\x1b[{_SELECTIONS[style]}m{shown}\x1b[0m"
