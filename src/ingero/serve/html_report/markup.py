"""HTML and inline SVG in which every text is escaped on insertion."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias

from ingero.foreign_text import visible

MAX_CHARACTERS = 2_000  # of one text; the recording has the rest
_CUT = "…"


class Markup(str):
    """Text that is HTML already, without unescaped foreign text."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | Iterable[str | Markup]"


def text(value: str, most: int = MAX_CHARACTERS) -> Markup:
    """An untrusted text: cut, without control characters and direction marks, escaped."""
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
    """Concatenated children."""
    return Markup("".join(map(_inner, children)))


def _inner(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    return text(child) if isinstance(child, str) else joined(child)
