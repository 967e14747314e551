"""docs/commands.md and docs/events.md: up to date, and nothing of a command or an event goes unexplained."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import click
import generated
import pytest

from ingero.cli.config.option_table import OPTIONS
from ingero.cli.examples import EXAMPLES
from ingero.cli.main import LazyGroup, cli
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


def test_make_checks_what_every_generator_writes() -> None:
    """Of those that need nothing else; what commands print is compared page by page (test_documented_commands.py)."""
    found = {path.stem for path in (ROOT / "tools").glob("gen_*.py") if "write_or_check(" in path.read_text()}
    assert found - {"gen_doc_outputs"} == set(generated.GENERATORS)
    assert "tools/generated.py --check" in (ROOT / "Makefile").read_text()


def test_every_file_that_is_out_of_date_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "other"):
        (tmp_path / f"{name}.py").write_text(
            f"from pathlib import Path\nfrom generated import write_or_check\n"
            f"write_or_check(Path({str(tmp_path)!r}) / '{name}.md', 'new')\n"
        )
        (tmp_path / f"{name}.md").write_text("old")
    monkeypatch.setattr(generated, "__file__", str(tmp_path / "generated.py"))
    monkeypatch.setattr(generated, "GENERATORS", ("one", "other"))
    monkeypatch.setattr(sys, "argv", ["generated.py", "--check"])
    with pytest.raises(SystemExit) as end:
        generated.main()
    assert end.value.code == "\n".join(f"{name}.md is out of date; run: make generate" for name in ("one", "other"))
    monkeypatch.setattr(sys, "argv", ["generated.py"])
    generated.main()
    assert [(tmp_path / f"{name}.md").read_text() for name in ("one", "other")] == ["new", "new"]


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
