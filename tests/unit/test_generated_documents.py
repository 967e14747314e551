"""docs/commands.md and docs/events.md: up to date, and nothing of a command or an event goes unexplained."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from ingero.cli.examples import EXAMPLES
from ingero.cli.main import LazyGroup, cli
from ingero.cli.option_table import OPTIONS
from ingero.ops import OPS
from tests.unit.ingero_lines import ingero_lines, parse

ROOT = Path(__file__).resolve().parents[2]


def tool(name: str) -> ModuleType:
    """A generator, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["gen_commands_doc", "gen_events_doc"])
def test_the_document_is_up_to_date(name: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / f"{name}.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", LazyGroup.commands_by_name)
def test_a_command_has_its_options_with_their_meaning(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    section = (ROOT / "docs/commands.md").read_text().partition(f"\n## ingero {name}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `--")]
    commands = [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
    options = [one for each in commands for one in each.params if isinstance(one, click.Option) and not one.hidden]
    assert len(rows) == len(options)
    for option in options:
        assert any(f"`{max(option.opts, key=len)}" in row and len(row.split(" | ")[-1]) > 10 for row in rows)


def test_an_option_of_trace_has_its_variable_and_its_key() -> None:
    text = (ROOT / "docs/commands.md").read_text()
    assert [one.name for one in OPTIONS if f"| `{one.variable}` | `{one.name}` |" not in text] == []


def test_an_option_without_help_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    command = cli.get_command(click.Context(cli), "version")
    assert command is not None
    monkeypatch.setattr(command, "params", [click.Option(["--mute"])])
    commands = tool("gen_commands_doc")
    with pytest.raises(commands.UndocumentedError, match="--mute"):
        commands.text()


def test_a_host_event_that_is_not_explained_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    events = tool("gen_events_doc")
    known = dict(events._RECORDED)
    known.popitem()
    monkeypatch.setattr(events, "_RECORDED", known)
    with pytest.raises(events.UnexplainedError):
        events.text()


def test_every_traced_call_and_field_of_a_line_is_listed() -> None:
    text = (ROOT / "docs/events.md").read_text()
    assert [op.name for op in OPS if f"| `{op.name}` | {op.code} |" not in text] == []
    schema = (ROOT / "src/ingero/cli/trace_events.schema.json").read_text()
    fields = set(re.findall(r'^        "(\w+)": \{', schema, re.MULTILINE))
    assert {name for name in fields if f"{name}` |" not in text} == {"type"}


@pytest.mark.parametrize("line", [line for one in EXAMPLES.values() for line in one.values()])
def test_an_example_parses(line: str) -> None:
    found = list(ingero_lines(line))
    assert found
    for arguments in found:
        parse(arguments)


def test_the_examples_of_a_command_are_of_that_command() -> None:
    for name, one in EXAMPLES.items():
        assert all(name in shlex.split(line, comments=True) for line in one.values())
