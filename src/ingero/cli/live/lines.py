"""Lines of styled text with an exact width in terminal cells.

Nothing here is parsed as markup. Names of processes and files are not trusted: `clean` them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.style import Style

from ingero.foreign_text import visible

Span: TypeAlias = "tuple[str, str]"  # text, name of its style
Line: TypeAlias = "tuple[Span, ...]"
More: TypeAlias = "Callable[[int, int], str]"  # (items shown, items hidden) -> what is said of the hidden ones

STYLES: dict[str, Style] = {
    "": Style.null(),
    "title": Style(bold=True, color="cyan"),
    "strong": Style(bold=True),
    "dim": Style(dim=True),
    "good": Style(color="green"),
    "warn": Style(color="yellow"),
    "bad": Style(bold=True, color="red"),
    "run": Style(color="green"),
    "runq": Style(color="red"),
    "throttled": Style(bold=True, color="red"),
    "yielded": Style(color="magenta"),
    "sleep": Style(dim=True),
    "io": Style(color="yellow"),
    "uninterruptible": Style(bold=True, color="magenta"),
    "stopped": Style(bold=True, color="yellow"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The characters of bars. states: one for each of STATES, distinct without color."""

    full: str
    empty: str
    cut: str
    rule: str
    states: str


UNICODE = Glyphs(full="█", empty="░", cut="…", rule="│", states="█▓Tyˑ▒KS")
ASCII = Glyphs(full="#", empty="-", cut="~", rule="|", states="#=Ty.oKS")


def clean(text: str) -> str:
    """Foreign text with control characters as visible escapes, and rare spaces (of varying width) as plain ones."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in visible(text))


def fitted(text: str, width: int, *, is_right: bool = False, cut: str = "…") -> str:
    """The text in exactly `width` cells: padded, or cut with a mark at its end."""
    if len(text) <= width and text.isascii():
        return text.rjust(width) if is_right else text.ljust(width)
    return _fitted(text, width, is_right=is_right, cut=cut)


@lru_cache(maxsize=4096)
def _fitted(text: str, width: int, *, is_right: bool, cut: str) -> str:
    if width <= 0:
        return ""
    size = cells_of(text)
    if size > width:
        return set_cell_size(text, width - 1) + cut
    return " " * (width - size) + text if is_right else text + " " * (width - size)


def shortened_path(path: str, width: int, cut: str = "…") -> str:
    """A path that keeps its end, whole folders where they fit; its last name at least as far as it fits."""
    if cell_len(path) <= width:
        return path
    parts = path.split("/")
    for index in range(1, len(parts)):
        tail = f"{cut}/" + "/".join(parts[index:])
        if cell_len(tail) <= width:
            return tail
    return fitted(parts[-1], width, cut=cut).rstrip()


def cells_of(text: str) -> int:
    """Cells that a text without control characters takes."""
    return len(text) if text.isascii() else cell_len(text)  # nearly all are ASCII, and a frame asks for thousands


def width_of(line: Line) -> int:
    """Cells of a line."""
    return cells_of("".join([text for text, _ in line]))


def merged_spans(line: Line) -> Line:
    """The line with neighboring spans of one style merged: each span costs bytes and time."""
    return tuple(("".join([text for text, _ in spans]), style) for style, spans in groupby(line, key=itemgetter(1)))


def cropped(line: Line, width: int, cut: str = "…") -> Line:
    """The line in at most `width` cells; what was cut ends in a mark."""
    if width_of(line) <= width:
        return line
    spans: list[Span] = []
    left = width
    for text, style in line:
        size = cells_of(text)
        if size >= left:
            spans.append((fitted(text + " ", left, cut=cut), style))
            break
        spans.append((text, style))
        left -= size
    return tuple(spans)


def padded(line: Line, width: int) -> Line:
    """The line in exactly `width` cells."""
    size = width_of(line)
    if size > width:
        line = cropped(line, width)
        size = width_of(line)
    return (*line, (" " * (width - size), ""))


def plain_more(shown: int, hidden: int) -> str:  # noqa: ARG001  # one of the texts that `flowed` may ask for
    """The text that stands for items that do not fit."""
    return f"+ {hidden} more"


def flowed(items: Sequence[Line], width: int, rows: int, *, more: More = plain_more) -> list[Line]:
    """Items side by side in at most `rows` lines; what does not fit is summed up at the end by `more`."""
    lines: list[list[Span]] = [[]]
    used = 0
    sizes = [width_of(item) for item in items]
    left = sum(sizes) + 2 * len(sizes)  # of this item and those after it, with the gap that each begins with
    for index, (item, size) in enumerate(zip(items, sizes, strict=True)):
        hidden = len(items) - index
        gap = 2 if used else 0
        fits_whole = used + gap - 2 + left <= width
        left -= size + 2
        after = f"  {more(index + 1, hidden - 1)}" if len(lines) == rows and not fits_whole else ""
        if used and used + gap + size + cell_len(after) > width:
            if len(lines) == rows:
                text = f"  {more(index, hidden)}"
                lines[-1] = [*cropped(tuple(lines[-1]), max(0, width - cell_len(text))), (text, "dim")]
                break
            lines.append([])
            used = gap = 0
        shown = cropped(item, max(1, width - gap - used))
        lines[-1] += [("  ", ""), *shown] if gap else shown
        used += gap + width_of(shown)
    return [tuple(line) for line in lines]


def bar(ratio: float, width: int, style: str, glyphs: Glyphs) -> Line:
    """A share of 1 as a bar; anything above 0 is seen."""
    filled = min(width, max(round(ratio * width), 1 if ratio > 0 else 0))
    return ((glyphs.full * filled, style), (glyphs.empty * (width - filled), "dim"))


def stacked_bar(parts: Sequence[tuple[int, str, str]], width: int) -> Line:
    """Amounts (amount, glyph, style) as one bar: the cells add up to `width`, and what is not 0 has at least one."""
    total = sum(amount for amount, _, _ in parts)
    shown = [part for part in parts if part[0] > 0]
    if not total or width < len(shown):
        return ()
    cells = [max(1, int(amount / total * width)) for amount, _, _ in shown]
    while (spare := width - sum(cells)) != 0:  # the largest give or take: there it is noticed least
        cells[max(range(len(cells)), key=lambda i: shown[i][0] if spare > 0 else cells[i])] += 1 if spare > 0 else -1
    return tuple((glyph * count, style) for (_, glyph, style), count in zip(shown, cells, strict=True))


def plain(lines: Iterable[Line]) -> str:
    """The text alone."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)
