"""Turns the lines of a frame into the bytes for a terminal: every row is sent and filled to its end.

They are the bytes that Rich's own live display sends, without its cost per span. Unchanged rows are sent, too, so that
a frame covers what another program has printed.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ingero.cli.live.lines import STYLES, Line, width_of
from ingero.foreign_text import encodable

HOME = "\x1b[H"
_SAMPLE = "x"


class Painter:
    """Paints for one console, in its colors; characters that `encoding` lacks are replaced."""

    def __init__(self, console: Console, encoding: str = "utf-8") -> None:
        self._encoding = "" if encoding in ("utf-8", "utf8") else encoding
        self._codes = {name: _codes(console, name) for name in STYLES}

    def screen(self, lines: Sequence[Line], width: int, height: int) -> str:
        """A whole screen; lines: at most `height`, none of them longer than `width`."""
        rows = [self._row(self._encodable(line) if self._encoding else line, width) for line in lines]
        return HOME + "\n".join([*rows, *[" " * width] * (height - len(rows))])

    def _row(self, line: Line, width: int) -> str:
        codes = self._codes
        painted = [f"{codes[style][0]}{text}{codes[style][1]}" for text, style in line if text]
        return "".join(painted) + " " * (width - width_of(line))

    def _encodable(self, line: Line) -> Line:
        encoding = self._encoding
        return tuple((encodable(text, encoding), style) for text, style in line)


def _codes(console: Console, name: str) -> tuple[str, str]:
    """The escape sequences that this console sends before and after a text of a style."""
    with console.capture() as captured:
        console.print(Text(_SAMPLE, style=STYLES[name]), end="")
    before, _, after = captured.get().partition(_SAMPLE)
    return before, after
