"""Shell completion: the scripts work in a shell, and what they ask offers every command, option and known value."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import CompletionItem, get_completion_class
from click.testing import CliRunner

from ingero.cli.completion import SHELLS
from ingero.cli.main import COMPLETE_VARIABLE, PROGRAM, LazyGroup, cli
from ingero.demo.scenarios import SCENARIOS

EVERY_COMMAND = pytest.mark.parametrize("name", LazyGroup.commands_by_name)
EVERY_SHELL = pytest.mark.parametrize("shell", SHELLS)


def printed(shell: str, name: str, incomplete: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the shell's script gets for `ingero NAME INCOMPLETE<TAB>`, as its own class writes it."""
    monkeypatch.setenv("COMP_WORDS", f"ingero {name} {incomplete}".rstrip())
    monkeypatch.setenv("COMP_CWORD", incomplete if shell == "fish" else "2")
    found = get_completion_class(shell)
    assert found is not None
    return found(cli, {}, PROGRAM, COMPLETE_VARIABLE).complete().splitlines()


def offered(*words: str) -> list[str]:
    """The values offered for the last word of `ingero WORDS<TAB>`."""
    found = get_completion_class("bash")
    assert found is not None
    items: list[CompletionItem[str]] = found(cli, {}, PROGRAM, COMPLETE_VARIABLE).get_completions(
        list(words[:-1]), words[-1]
    )
    return [item.value for item in items]


def options_of(name: str) -> set[str]:
    """The spellings of the options in the help of a command, the long ones."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    return {name for one in options for name in (*one.opts, *one.secondary_opts) if name.startswith("--")}


@EVERY_SHELL
@EVERY_COMMAND
def test_every_option_of_the_command_is_offered(name: str, shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(shell, name, "--", monkeypatch)
    words = {word for line in lines for word in line.replace(",", "\t").split("\t")}
    assert options_of(name) <= words


def test_every_command_is_offered_in_the_order_of_the_help() -> None:
    assert offered("") == list(LazyGroup.commands_by_name)


def test_commands_are_offered_without_importing_them() -> None:
    script = (
        "import sys\n"
        "from click.shell_completion import BashComplete\n"
        "from ingero.cli.main import cli\n"
        "BashComplete(cli, {}, 'ingero', '_INGERO_COMPLETE').get_completions([], '')\n"
        "print(*sorted(name for name in sys.modules if name.startswith('ingero.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    own = ("command_group", "examples", "main", "output")
    assert done.stdout.split() == [f"ingero.cli.{name}" for name in own]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("explain", "--rule", "cpu-thr"), ["cpu-throttled"]),
        (("export", "--format", "p"), ["perfetto", "pprof"]),
        (("trace", "--launches-at", ""), ["driver", "both"]),
        (("query", "--op", "ncclAllR"), ["ncclAllReduce"]),
        (("completion", ""), list(SHELLS)),
    ],
    ids=" ".join,
)
def test_known_values_are_offered(words: tuple[str, ...], values: list[str]) -> None:
    assert offered(*words) == values


def test_the_names_of_the_demos_are_offered() -> None:
    assert {scenario.name for scenario in SCENARIOS} <= set(offered("demo", ""))


@pytest.mark.parametrize(
    ("words", "answer"),
    [("ingero tr", "trace"), ("ingero explain --pe", "--per-process"), ("ingero export --format pp", "pprof")],
)
def test_bash_completes_a_line_with_the_sourced_script(tmp_path: Path, words: str, answer: str) -> None:
    program = tmp_path / "ingero"  # whatever is installed: this source tree
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ingero.cli.main "$@"\n')
    program.chmod(0o755)
    (tmp_path / "script").write_text(_script("bash"))
    line = (
        f"source '{tmp_path}/script'; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        '$(complete -p ingero | sed -E "s/.*-F ([^ ]+) .*/\\1/") ingero; echo "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "--norc", "-c", line], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (answer, "")


@EVERY_SHELL
def test_the_script_asks_ingero_with_its_own_variable(shell: str) -> None:
    script = _script(shell)
    assert f"{COMPLETE_VARIABLE}={shell}_complete" in script
    assert "ingero" in script


def test_another_shell_is_refused_with_those_that_there_are() -> None:
    done = CliRunner().invoke(cli, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert all(shell in done.stderr for shell in SHELLS)


def _script(shell: str) -> str:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    return done.stdout
