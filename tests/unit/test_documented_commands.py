"""Commands that documents tell people to run exist, parse, and print what the README shows."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ingero.cli.main import LazyGroup, cli
from tests.unit.ingero_lines import commands, ingero_lines, parse, shell_blocks
from tests.unit.mcp_client import call, server_of, text

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").glob("*.md"),
    *ROOT.glob("examples/**/*.md"),
]
LINES = [
    pytest.param(arguments, id=f"{path.relative_to(ROOT)}: {' '.join(arguments)}")
    for path in DOCUMENTS
    for block in shell_blocks(path.read_text())
    for arguments in ingero_lines(block)
]
# What a block of the README prints can be seen without root and without waiting.
_REPEATABLE = ("explain", "query", "demo")


def shown() -> Iterator[tuple[list[str], str]]:
    """Of the README: the commands that can be repeated here, each with the output that follows it."""
    pairs = re.findall(
        r"^```sh\n([^`]*)^```\n\n```\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    for block, output in pairs:
        found = list(ingero_lines(block))
        if len(found) == 1 and found[0][0] in _REPEATABLE:
            yield found[0], output


@pytest.mark.parametrize("arguments", LINES)
def test_a_documented_command_line_parses(arguments: list[str]) -> None:
    parse(arguments)


def test_the_readme_shows_the_way_from_install_to_an_answer() -> None:
    lines = [words for block in shell_blocks((ROOT / "README.md").read_text()) for words in commands(block)]
    seen = [words[0] if words[0] != "ingero" else words[1] for words in lines]
    way = ("make", "check", "demo", "trace", "explain", "query", "mcp", "dashboard", "curl", "grep", "export")
    assert list(dict.fromkeys(seen)) == list(way)


def test_the_readme_shows_the_output_of_each_command_that_can_be_repeated() -> None:
    assert sorted(arguments[0] for arguments, _ in shown()) == sorted(_REPEATABLE)


@pytest.mark.parametrize(("arguments", "output"), list(shown()))
def test_the_readme_shows_what_the_command_prints(
    arguments: list[str], output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        printed = [line.rstrip() for line in CliRunner().invoke(cli, arguments).stdout.splitlines()]
    finally:
        monkeypatch.undo()
        time.tzset()
    shortened = [line.rstrip() for line in output.splitlines() if line.strip() not in ("", "...")]
    assert [line for line in shortened if line not in printed] == []
    assert [line for line in dict.fromkeys(printed) if line in shortened] == shortened


def test_the_readme_shows_what_an_assistant_is_told() -> None:
    readme = (ROOT / "README.md").read_text()
    block = re.search(r"^ingero mcp --db (\S+)\n```\n\n```\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert block is not None
    told = text(call(server_of(ROOT / block[1]), "explain_incident")).splitlines()
    assert [line for line in block[2].splitlines() if line not in told] == []


def test_the_readme_names_no_command_that_does_not_exist() -> None:
    named = set(re.findall(r"`(?:sudo )?ingero ([a-z]+)", (ROOT / "README.md").read_text()))
    assert named == set(LazyGroup.commands_by_name)


def test_an_option_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(next(iter(ingero_lines("sudo INGERO_IO=0 ingero trace --frobnicate  # a comment"))))
