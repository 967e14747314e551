"""Commands that documents tell people to run exist, parse, and print what is shown below them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import gen_doc_outputs
import pytest

from ingero import open_recording
from ingero.cli.main import LazyGroup
from tests.unit.ingero_lines import commands, ingero_lines, parse, shell_blocks

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").rglob("*.md"),
    *ROOT.glob("examples/**/*.md"),
    *ROOT.glob("skills/**/*.md"),
]
LINES = [
    pytest.param(arguments, id=f"{path.relative_to(ROOT)}: {' '.join(arguments)}")
    for path in DOCUMENTS
    for block in shell_blocks(path.read_text())
    for arguments in ingero_lines(block)
]
MARKED = [page for page in gen_doc_outputs.PAGES if gen_doc_outputs.marked(page.read_text())]
# The shell block, where there is one, that ends right above a marked output.
_ABOVE = re.compile(r"^```sh\n([^`]*)^```\n+<!-- output: ([^\n;]+?)(?:;| -->)", re.MULTILINE)


@pytest.mark.parametrize("arguments", LINES)
def test_a_documented_command_line_parses(arguments: list[str]) -> None:
    parse(arguments)


@pytest.mark.parametrize("page", MARKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_shows_what_its_commands_print(page: Path) -> None:
    text = page.read_text()
    assert gen_doc_outputs.filled(text) == text, "python tools/gen_doc_outputs.py writes it anew"


@pytest.mark.parametrize("page", MARKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_an_output_below_a_command_is_of_that_command(page: Path) -> None:
    for block, mark in _ABOVE.findall(page.read_text()):
        command = shlex.split(mark)
        if command[0] == "ingero":
            assert list(ingero_lines(block)) == [command[1:]]


# Questions in SQL to one recording: those to nodes and to recordings of older versions have tests of their own.
STATEMENTS = sorted(
    {
        arguments[-1]
        for path in DOCUMENTS
        for block in shell_blocks(path.read_text())
        for arguments in ingero_lines(block)
        if arguments[0] == "query" and arguments[-1].startswith("SELECT") and "--nodes" not in arguments
    }
)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_documented_statement_is_answered(statement: str) -> None:
    with open_recording(ROOT / "examples/recordings/incident.db") as recording:
        recording.sql(statement)


def test_the_documented_python_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    [snippet] = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(snippet.replace("run.db", "examples/recordings/incident.db"), names)
    assert "priority" in capsys.readouterr().out
    assert names["rows"]
    assert names["calls"]


def test_every_marked_block_of_a_page_is_filled() -> None:
    for page in MARKED:
        text = page.read_text()
        assert len(gen_doc_outputs.marked(text)) == len(gen_doc_outputs._BLOCK.findall(text)), page


def test_lines_are_selected_by_their_begin_and_what_is_left_out_is_said() -> None:
    what = gen_doc_outputs.wanted("ingero version; from b; until d; lines 5")
    assert gen_doc_outputs.selected("a\n  b\nc\nd\n", what) == ["...", "  b", "c", "..."]
    with pytest.raises(gen_doc_outputs.OutputError, match="begins with 'b'"):
        gen_doc_outputs.selected("a\n", what)
    with pytest.raises(gen_doc_outputs.OutputError, match="selects nothing"):
        gen_doc_outputs.wanted("ingero version; frm b")


def test_the_readme_shows_the_way_from_install_to_an_answer() -> None:
    lines = [words for block in shell_blocks(README) for words in commands(block)]
    seen = [words[0] if words[0] != "ingero" else words[1] for words in lines]
    assert list(dict.fromkeys(seen)) == ["make", "check", "trace", "explain"]


def test_the_readme_can_be_read_in_one_go() -> None:
    assert len(README.splitlines()) <= 150
    cells = [cell.strip() for line in README.splitlines() if line.startswith("|") for cell in line.split("|")]
    assert max(map(len, cells)) <= 200


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_names_no_command_that_does_not_exist(path: Path) -> None:
    named = set(re.findall(r"`(?:sudo )?ingero ([a-z]+)", path.read_text()))
    assert named <= set(LazyGroup.commands_by_name)


def test_an_option_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(next(iter(ingero_lines("sudo INGERO_IO=0 ingero trace --frobnicate  # a comment"))))
