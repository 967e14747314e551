"""Writes the outputs that README.md and docs/ show, from the commands themselves; with --check, says what is outdated.

A block is marked by a comment that stands above it, and its fence is what the command prints:

    <!-- output: ingero explain --db examples/recordings/incident.db; from HIGH; lines 12 -->
    ```
    ...
    ```

`ingero` runs in this process, `python FILE` as a program, `file FILE` is a file as it stands; all in the repository's
root, in UTC, 100 columns wide and without color. `from TEXT` begins at the first line that begins with TEXT (after its
indentation), `until TEXT` ends before the next one that does, `lines N` ends after N lines. Where something was left
out, `...` stands for it. A command that no longer prints TEXT is an error.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from click.testing import CliRunner
from generated import write_or_check

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_BLOCK = re.compile(
    r"(?P<mark><!-- output: (?P<what>[^\n]+) -->\n+```(?P<kind>\w*)\n)(?P<text>.*?)(?P<end>^```$)", re.M | re.S
)
_COLUMNS = "100"
_ENVIRONMENT = {"TZ": "UTC", "COLUMNS": _COLUMNS, "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}


class OutputError(Exception):
    """A marked block cannot be filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A command and which of its lines are shown."""

    command: tuple[str, ...]
    begin: str = ""
    end: str = ""
    most: int | None = None


def wanted(mark: str) -> Wanted:
    """What a comment asks for.

    Raises:
        OutputError: a word of it is none of those that select lines.
    """
    command, *selections = [part.strip() for part in mark.split(";")]
    found: dict[str, str] = {}
    for selection in selections:
        word, _, value = selection.partition(" ")
        if word not in ("from", "until", "lines") or not value:
            raise OutputError(f"{mark}: {selection!r} selects nothing")
        found[word] = value
    most = int(found["lines"]) if "lines" in found else None
    return Wanted(
        command=tuple(shlex.split(command)), begin=found.get("from", ""), end=found.get("until", ""), most=most
    )


def selected(printed: str, what: Wanted) -> list[str]:
    """The lines that are shown of what was printed.

    Raises:
        OutputError: the text that it shall begin or end with is not there.
    """
    lines = [line.rstrip() for line in printed.rstrip().splitlines()]
    first = _place(lines, what.begin, 0, what) if what.begin else 0
    last = _place(lines, what.end, first + 1, what) if what.end else len(lines)
    if what.most is not None:
        last = min(last, first + what.most)
    shown = lines[first:last]
    while shown and not shown[-1]:
        shown.pop()
    is_cut = any(line for line in lines[last:])
    return [*(["..."] if first else []), *shown, *(["..."] if is_cut else [])]


def _place(lines: list[str], text: str, begin: int, what: Wanted) -> int:
    for number in range(begin, len(lines)):
        if lines[number].lstrip().startswith(text):
            return number
    raise OutputError(f"{shlex.join(what.command)} prints no line that begins with {text!r}")


@cache
def output_of(command: tuple[str, ...]) -> str:
    """What a command prints.

    Raises:
        OutputError: it cannot be run here, or fails.
    """
    if command[0] == "ingero":
        return _ingero(command[1:])
    if command[0] == "file":
        return (ROOT / command[1]).read_text(encoding="utf-8")
    if command[0] != "python":
        raise OutputError(f"{command[0]}: only ingero, python and file are known")
    done = subprocess.run(
        [sys.executable, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, **_ENVIRONMENT},
    )  # fmt: skip
    if done.returncode:
        raise OutputError(f"{shlex.join(command)}: {done.stderr[-500:]}")
    return done.stdout


def _ingero(arguments: tuple[str, ...]) -> str:
    from ingero.cli.main import cli  # noqa: PLC0415  # programs need none of it

    with _surroundings():
        done = CliRunner().invoke(cli, list(arguments), terminal_width=int(_COLUMNS))
    if done.exit_code > 1 or (done.exception is not None and not isinstance(done.exception, SystemExit)):
        raise OutputError(f"ingero {shlex.join(arguments)}: {done.exception or done.output}")
    return done.stdout


@contextmanager
def _surroundings() -> Iterator[None]:
    kept, folder = dict(os.environ), Path.cwd()
    os.environ.update(_ENVIRONMENT)
    os.environ.pop("INGERO_DB", None)
    os.chdir(ROOT)
    time.tzset()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)
        os.chdir(folder)
        time.tzset()


def filled(markdown: str) -> str:
    """A page with the outputs of its commands."""

    def block(found: re.Match[str]) -> str:
        what = wanted(found["what"])
        shown = "".join(f"{line}\n" for line in selected(output_of(what.command), what))
        return found["mark"] + shown + found["end"]

    return _BLOCK.sub(block, markdown)


def marked(markdown: str) -> list[str]:
    """What the comments of a page ask for, in their order."""
    return re.findall(r"<!-- output: ([^\n]+) -->", markdown)


def main() -> None:
    """Writes or checks every page that has such a block."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if marked(text):
            try:
                write_or_check(page, filled(text))
            except OutputError as error:
                sys.exit(f"{page.relative_to(ROOT)}: {error}")


if __name__ == "__main__":
    main()
