"""Draws what `ingero explain` prints on a terminal as SVG, light and dark, 80 and 200 columns wide: docs/pictures.

The program runs on a pseudo-terminal of that width, with color if it has any; lines that are longer wrap as a terminal
wraps them. The pictures fetch nothing: text stays text, in whatever monospaced font the reader has.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
RECORDING = "examples/recordings/incident.db"
SHOWN = ("explain", "--db", RECORDING)
# name -> columns, lines: the narrow one is read at once in README.md, the wide one shows everything
SIZES = {"terminal": (80, 30), "terminal-wide": (200, 60)}


def _theme(background: str, text: str, normal: str, bright: str) -> TerminalTheme:
    """Colors as hexadecimal words; normal and bright: the eight of a terminal, black first."""

    def rgb(word: str) -> tuple[int, int, int]:
        red, green, blue = bytes.fromhex(word)
        return red, green, blue

    return TerminalTheme(rgb(background), rgb(text), [*map(rgb, normal.split())], [*map(rgb, bright.split())])


THEMES = {
    "light": _theme(
        "ffffff",
        "24292f",
        "24292f bf1c26 116329 7d4e00 0950b4 8250df 0c697a 57606a",
        "57606a cf222e 1a7f37 9a6700 0969da 8957e5 1b7c83 24292f",
    ),
    "dark": _theme(
        "0d1117",
        "e6edf3",
        "6e7681 ff7b72 3fb950 d29922 58a6ff bc8cff 39c5cf c9d1d9",
        "8b949e ffa198 56d364 e3b341 79c0ff d2a8ff 56d4dd f0f6fc",
    ),
}

_CHARACTER, _LINE, _MARGIN = 12.2, 24.4, 12  # of rich.console.Console.export_svg; around the text

# Rich's own, without the window's frame and the font that it would fetch.
_FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 WIDTH HEIGHT" role="img">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  line-height: {line_height}px; font-variant-east-asian: full-width; white-space: pre; }}
{styles}
</style>
<defs>{lines}</defs>
<rect x="1" y="1" width="INNER" height="LOWER" rx="8" fill="BACKGROUND" stroke="#8b949e" stroke-opacity="0.5"/>
<g transform="translate(MARGIN, MARGIN)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def printed(columns: int) -> str:
    """What the program prints on a terminal that wide, with its escape sequences."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    environment = {
        **os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color", "FORCE_COLOR": "1", "LC_ALL": "C.UTF-8",
        "TZ": "UTC", "INGERO_NO_UPDATE_NOTIFIER": "1",
    }  # fmt: skip
    environment.pop("NO_COLOR", None)
    program = [sys.executable, "-m", "ingero.cli.main", *SHOWN]
    with subprocess.Popen(program, stdout=writer, stderr=writer, stdin=writer, cwd=ROOT, env=environment):
        os.close(writer)
        return _all_of(reader).decode().replace("\r\n", "\n")


def _all_of(reader: int) -> bytes:
    """Until nobody holds the other end."""
    found = b""
    try:
        while some := os.read(reader, 1 << 16):
            found += some
    except OSError as error:
        if error.errno != errno.EIO:  # how Linux says that it was closed
            raise
    os.close(reader)
    return found


def wrapped(text: Text, columns: int) -> list[Text]:
    """Its lines as a terminal breaks them: at its edge."""
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        cuts = range(columns, len(line), columns)
        lines += line.divide(cuts) if cuts else [line]
    return lines


def picture(output: str, columns: int, most: int, theme: TerminalTheme) -> str:
    """The picture of a terminal. most: lines it has; `...` is the last where there are more."""
    command = Text.assemble(("$ ", "bold green"), ("ingero " + " ".join(SHOWN), "bold"))
    lines = [*wrapped(command, columns), *wrapped(Text.from_ansi(output.rstrip()), columns)]
    if len(lines) > most:
        last = next(number for number in range(most - 1, 0, -1) if not lines[number].plain.strip())
        lines = [*lines[:last], Text("...")]
    console = Console(
        width=columns, record=True, file=StringIO(), force_terminal=True, color_system="truecolor", highlight=False,
        legacy_windows=False, emoji=False, markup=False,
    )  # fmt: skip
    for line in lines:
        console.print(line, overflow="ignore", no_wrap=True, crop=False)
    width, height = round(columns * _CHARACTER + 2 * _MARGIN), round(len(lines) * _LINE + 2 * _MARGIN)
    known = {
        "BACKGROUND": "#{:02x}{:02x}{:02x}".format(*theme.background_color), "MARGIN": f"{_MARGIN}",
        "WIDTH": f"{width}", "HEIGHT": f"{height}", "INNER": f"{width - 2}", "LOWER": f"{height - 2}",
    }  # fmt: skip
    form = _FORMAT
    for name, value in known.items():
        form = form.replace(name, value)
    drawn = console.export_svg(theme=theme, code_format=form)
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def main() -> None:
    """Draws them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=PICTURES, help="folder for the pictures")
    folder = parser.parse_args().into
    folder.mkdir(parents=True, exist_ok=True)
    for name, (columns, most) in SIZES.items():
        output = printed(columns)
        for kind, theme in THEMES.items():
            (folder / f"{name}-{kind}.svg").write_text(picture(output, columns, most, theme), encoding="utf-8")


if __name__ == "__main__":
    main()
