"""The pictures of a terminal: everything printed stands in them, inside the frame, and nothing is fetched."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import terminal_picture
from click.testing import CliRunner
from rich.text import Text

from ingero.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
COLORED = "\x1b[1;31mHIGH\x1b[0m  cpu-contention\n\n" + "\n".join(
    f"line {number} ▇▇ " + "x" * 90 for number in range(9)
)


def lines_of(svg: str) -> list[str]:
    """The text of a picture, line by line from the top."""
    rows: dict[float, str] = {}
    for text in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        y = float(text.attrib["y"])
        rows[y] = rows.get(y, "") + "".join(text.itertext()).replace("\xa0", " ")
    return [rows[y].rstrip() for y in sorted(rows)]


@pytest.mark.parametrize("kind", terminal_picture.THEMES)
def test_long_lines_wrap_at_the_edge_and_all_text_is_inside(kind: str) -> None:
    svg = terminal_picture.picture(COLORED, 40, 100, terminal_picture.THEMES[kind])
    root = ElementTree.fromstring(svg)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    for text in (one for one in root.iter(f"{SVG}text") if (one.text or "").strip()):
        assert float(text.attrib["x"]) + float(text.attrib["textLength"]) + 12 <= width
        assert float(text.attrib["y"]) + 12 < height
    wanted = "".join("".join(COLORED.split("\n")).split())
    assert "".join("".join(lines_of(svg)).split()).endswith(Text.from_ansi(wanted).plain)


def test_colors_are_those_of_the_terminal() -> None:
    svg = terminal_picture.picture(COLORED, 80, 100, terminal_picture.THEMES["dark"])
    assert re.search(r"fill: #ff7b72;font-weight: bold", svg)


def test_what_has_no_room_is_left_out_at_an_empty_line() -> None:
    svg = terminal_picture.picture(COLORED, 200, 5, terminal_picture.THEMES["light"])
    assert lines_of(svg)[1:] == ["HIGH  cpu-contention", "..."]


@pytest.mark.parametrize("path", sorted(terminal_picture.PICTURES.glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_fetches_nothing(path: Path) -> None:
    text = path.read_text()
    assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@font-face|@import|<script|<image|url\((?!#)", text)


def test_the_pictures_show_what_is_printed_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    printed = CliRunner().invoke(cli, list(terminal_picture.SHOWN)).stdout
    [headline] = [line for line in printed.splitlines() if line.startswith("HIGH")]
    for kind in terminal_picture.THEMES:
        for name in terminal_picture.SIZES:
            shown = lines_of((terminal_picture.PICTURES / f"{name}-{kind}.svg").read_text())
            words = ["".join(line.split()) for line in shown]  # space between two styles is no text of the picture
            assert any(line in "".join(headline.split()) for line in words if line.startswith("HIGH")), (
                "python tools/terminal_picture.py draws them anew"
            )
