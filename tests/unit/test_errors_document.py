"""docs/errors.md: up to date, and each error that the command line prints with a hint is found in it."""

from __future__ import annotations

import re
from pathlib import Path

import gen_errors_doc
import pytest
from click.testing import CliRunner

from ingero.cli.main import cli
from ingero.errors import IngeroError

ROOT = Path(__file__).resolve().parents[2]
RECORDING = str(ROOT / "examples/recordings/incident.db")
FAILING = (
    ["explain", "--db", "nowhere.db"],
    ["explain", "--db", "empty.db"],
    ["explain", "--db", "text.db"],
    ["explain", "--db", RECORDING, "--rule", "bad-luck"],
    ["explain", "--db", RECORDING, "--pid", "1"],
    ["explain", "--db", RECORDING, "--from", "yesterday"],
    ["explain", "--db", RECORDING, "--node", "gpu-9"],
    ["query", "--db", RECORDING, "SELECT nothing FROM op_stats"],
    ["query", "--db", RECORDING, "SELECT 1 FROM nowhere"],
    ["query", "--db", RECORDING, "DELETE FROM op_stats"],
    ["query", "--db", RECORDING, "SELECT FROM"],
    ["query", "--db", RECORDING, "--op", "cudaNothing"],
    ["query", "--db", RECORDING, "--since", "tomorrow"],
    ["query", "--nodes", "gpu-[1-", "SELECT 1"],
    ["export", "--db", RECORDING, "--format", "perfetto", "-o", "missing/run.pftrace"],
    ["copy", RECORDING, "text.db"],
    ["merge", "nowhere.db", "-o", "all.db"],
    ["import", "text.db", "-o", "run.db"],
    ["demo", "no-such-scenario", "--no-gpu"],
    ["mcp", "--db", RECORDING, "--http", "0.0.0.0:0"],
    ["dashboard", "--db", RECORDING, "--addr", "0.0.0.0:0"],
    ["trace", "--max-db", "much"],
    ["trace", "--config", "nowhere.yaml"],
    ["config", "check", "nowhere.yaml"],
    ["certs", "node", "gpu-01", "--dir", "nowhere"],
)


@pytest.fixture(scope="module")
def listed() -> list[gen_errors_doc.Message]:
    """The rows of the document."""
    return gen_errors_doc.messages()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with an empty file and one that is no recording."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INGERO_DB", raising=False)
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("this is no recording\n" * 50)


@pytest.mark.parametrize("arguments", FAILING, ids=" ".join)
@pytest.mark.usefixtures("place")
def test_an_error_of_the_command_line_is_listed_with_its_way_out(
    arguments: list[str], listed: list[gen_errors_doc.Message]
) -> None:
    error = CliRunner().invoke(cli, arguments).exception
    assert isinstance(error, IngeroError), error
    found = [
        one
        for one in listed
        if gen_errors_doc.pattern(one.text).fullmatch(str(error))
        and any(gen_errors_doc.pattern(way).fullmatch(error.hint) for way in one.way_out.split(" / "))
    ]
    assert found, (str(error), error.hint)


def test_every_part_of_the_program_has_its_section(listed: list[gen_errors_doc.Message]) -> None:
    assert {one.section for one in listed} == set(gen_errors_doc.SECTIONS.values())


def test_the_messages_of_troubleshooting_are_those_of_the_product(listed: list[gen_errors_doc.Message]) -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    shown = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(shown) > 8
    texts = [re.sub(r"^(‹[^›]*›|\.\.\.)+", "... ", one.text).replace("...  ", "... ") for one in listed]
    assert [
        message
        for message in shown
        if not any(text.startswith(message) or gen_errors_doc.pattern(message).fullmatch(text) for text in texts)
    ] == []
