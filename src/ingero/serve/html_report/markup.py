"""HTML and inline SVG, in which every text is escaped where it is put in."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias

from ingero.foreign_text import visible

MOST_CHARACTERS = 2_000  # of one text; who needs more has the recording
_CUT = "…"


class Markup(str):
    """Text that is HTML already; what is made otherwise holds no text of others."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | Iterable[str | Markup]"


def text(value: str, most: int = MOST_CHARACTERS) -> Markup:
    """A text that anybody may have chosen: cut, without control characters and marks of direction, escaped."""
    cut = value if len(value) <= most else value[:most] + _CUT
    return Markup(html.escape(visible(cut)))


def element(name: str, *children: Child, **attributes: str | float | None) -> Markup:
    """An element. children: texts, which are escaped, and Markup, which is not.

    attributes: `class_` is class, `aria_label` is aria-label; None: it has none.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_inner(value if isinstance(value, str) else str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Markup:
    """One after the other."""
    return Markup("".join(map(_inner, children)))


def _inner(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    return text(child) if isinstance(child, str) else joined(child)
