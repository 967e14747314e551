"""On a terminal the commands have colors and say what was meant; in pipes and for programs they are plain text."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from ingero.cli.command_group import EXAMPLE
from ingero.cli.examples import EXAMPLES, first_example
from ingero.cli.main import LazyGroup, cli
from ingero.serve.text.short_report import COLUMNS, LINES
from tests.unit.ingero_lines import ingero_lines, parse
from tests.unit.run_ingero import run_ingero

ROOT = Path(__file__).resolve().parents[3]
INCIDENT = ROOT / "examples/recordings/incident.db"
HEALTHY = ROOT / "examples/recordings/sample-gpu-node-01.db"
EXPLAIN = ("explain", "--db", str(INCIDENT))
TEXTS = [EXPLAIN, ("compare", str(HEALTHY), str(HEALTHY)), ("check",), ("demo", "incident", "--no-gpu")]
Piped = Callable[..., str]
COLORS = ("NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS")  # the last two are rich-click's


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in COLORS}
    return {**kept, "TERM": "xterm-256color", "COLUMNS": "100", **variables}


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Piped:
    """Both outputs of a command that runs in this process, whose outputs are no terminal."""

    def run(*arguments: str, **variables: str) -> str:
        for name in COLORS:  # set, so that what --color makes of them is undone
            monkeypatch.setenv(name, variables.get(name, ""))
        _, out, err = run_ingero(monkeypatch, capsys, *arguments)
        return out + err

    return run


def on_a_terminal(*arguments: str, **variables: str) -> str:
    """What a terminal is sent."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ingero.cli.main", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**variables)):
        os.close(theirs)
        sent = b"".join(_read(ours))
    os.close(ours)
    return sent.decode()


def _read(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            yield os.read(terminal, 65536)
        except OSError as error:
            if error.errno == errno.EIO:  # the program has ended
                return
            raise


@pytest.mark.parametrize("arguments", TEXTS, ids=" ".join)
def test_a_pipe_gets_no_escapes_and_a_terminal_colors(piped: Piped, arguments: tuple[str, ...]) -> None:
    assert "\x1b" not in piped(*arguments)
    shown = on_a_terminal(*arguments)
    assert re.search(r"\x1b\[(1|1;31|32|33|36)m", shown)


def test_a_report_has_the_same_text_with_and_without_colors(piped: Piped) -> None:
    assert re.sub(r"\x1b\[[\d;]*m", "", piped(*EXPLAIN, FORCE_COLOR="1")) == piped(*EXPLAIN)


@pytest.mark.parametrize("arguments", [("--color", "never", *EXPLAIN), (*EXPLAIN, "--color", "never")])
def test_color_never_wins_over_the_terminal_and_the_environment(arguments: tuple[str, ...]) -> None:
    assert "\x1b" not in on_a_terminal(*arguments, FORCE_COLOR="1")


@pytest.mark.parametrize("arguments", [("--color", "always", *EXPLAIN), (*EXPLAIN, "--color=always")])
def test_color_always_wins_over_the_pipe_and_the_environment(piped: Piped, arguments: tuple[str, ...]) -> None:
    assert "\x1b[1;31mHIGH\x1b[0m" in piped(*arguments, NO_COLOR="1")


def test_color_never_is_also_of_the_help() -> None:
    assert "\x1b" in on_a_terminal("explain", "--help")
    assert "\x1b" not in on_a_terminal("--color", "never", "explain", "--help")


def test_no_color_keeps_a_terminal_plain() -> None:
    assert "\x1b" not in on_a_terminal(*EXPLAIN, NO_COLOR="1")


@pytest.mark.parametrize(
    "arguments",
    [
        (*EXPLAIN, "--json"),
        ("compare", str(HEALTHY), str(INCIDENT), "--json"),
        ("check", "--json"),
        ("query", "--db", str(INCIDENT), "--csv", "SELECT cause, severity FROM incidents"),
        ("query", "--db", str(INCIDENT), "--json", "SELECT cause, severity FROM incidents"),
    ],
    ids=" ".join,
)
def test_programs_get_no_escapes_even_where_colors_are_forced(piped: Piped, arguments: tuple[str, ...]) -> None:
    assert "\x1b" not in piped(*arguments, FORCE_COLOR="1")


def test_a_demo_moves_no_cursor_in_a_pipe_that_has_colors(piped: Piped) -> None:
    shown = piped("demo", "incident", "--no-gpu", FORCE_COLOR="1")
    assert set(re.findall(r"\x1b\[[^A-Za-z]*([A-Za-z])", shown)) == {"m"}


def test_a_short_report_is_plain_even_where_colors_are_forced(piped: Piped) -> None:
    lines = piped(*EXPLAIN, "--short", FORCE_COLOR="1").splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    assert not any("\x1b" in line for line in lines)
    assert lines[1].startswith("HIGH priority, ")


@pytest.mark.parametrize("other", ["--json", "--chains", "--per-process", "--stacks"])
def test_a_short_report_has_no_room_for_more(piped: Piped, other: str) -> None:
    assert piped(*EXPLAIN, "--short", other) == (
        f"error: --short and {other} exclude each other\n  hint: give one of them\n"
    )


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("explian",), "ingero explain?"),
        (("Explain",), "ingero explain?"),
        (("certs", "nod"), "ingero certs node?"),
        (("explain", "--sicne", "5m"), "did you mean --since?"),
        (("trace", "--no-stak"), "did you mean --no-stack?"),
        (("trace", "--hlep"), "did you mean --help?"),
        (("certs", "client", "alice", "--forse"), "did you mean --force?"),
        (("demo", "incidnet"), "ingero demo incident?"),
        (("explain", "--rule", "cpu-contentoin"), "did you mean cpu-contention?"),
        (("config", "show", "dashbord"), "did you mean dashboard?"),
    ],
    ids=" ".join,
)
def test_what_was_mistyped_is_answered_with_what_was_meant(piped: Piped, arguments: tuple[str, ...], hint: str) -> None:
    error, way_out = piped(*arguments).splitlines()
    assert error.startswith(("error: there is no ", "error: ingero.yaml has no settings of "))
    assert way_out.startswith("  hint: did you mean ")
    assert hint in way_out


def test_a_mistyped_choice_is_answered_with_the_one_that_was_meant(piped: Piped) -> None:
    shown = piped("export", "--format", "perfeto")
    assert "'perfeto' is not one of perfetto, chrome, flamegraph, pprof; did you mean perfetto?" in shown


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("frobnicate",), "there is no command 'frobnicate'"),
        (("explain", "--xyzzy"), "there is no option --xyzzy"),
        (("query", "--limit", "-1"), "invalid value for '--limit': -1 is less than 0"),
        (("query", "--limit", "ten"), "invalid value for '--limit': 'ten' is not a whole number"),
        (("certs", "client", "alice", "--days", "9999"), "invalid value for '--days': 9999 is more than 3650"),
        (("export", "--format"), "option '--format' requires an argument"),
        (("compare", "a.db"), "two recordings are needed: "),
    ],
    ids=" ".join,
)
def test_a_usage_error_has_the_form_of_all_errors(piped: Piped, arguments: tuple[str, ...], error: str) -> None:
    first, hint = piped(*arguments).splitlines()
    assert first.startswith(f"error: {error}")
    assert hint.startswith("  hint: ")
    assert hint.endswith(("describes it", "lists all"))


def test_a_group_without_a_command_shows_its_help(piped: Piped) -> None:
    assert "Commands" in piped("certs")


def everything() -> list[tuple[str, ...]]:
    """Every command and those below it."""
    found: list[tuple[str, ...]] = []
    for name in LazyGroup.commands_by_name:
        found.append((name,))
        command = cli.get_command(click.Context(cli, info_name="ingero"), name)
        found += [(name, below) for below in getattr(command, "commands", {})]
    return found


def command_of(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    context = click.Context(cli, info_name="ingero")
    for name in path:
        assert isinstance(command, click.Group)
        below = command.get_command(context, name)
        assert below is not None
        command, context = below, click.Context(below, parent=context, info_name=name)
    return command


@pytest.mark.parametrize("path", everything(), ids=" ".join)
def test_the_help_of_every_command_ends_with_an_example_that_parses(path: tuple[str, ...]) -> None:
    example = first_example(*path)
    assert example
    assert (command_of(path).epilog or "").endswith(f"{EXAMPLE} {example}")
    [*_, first] = [arguments for arguments in ingero_lines(example) if tuple(arguments[: len(path)]) == path]
    parse(first)


def test_examples_are_of_commands_that_there_are() -> None:
    assert set(EXAMPLES) == set(LazyGroup.commands_by_name)


@pytest.mark.parametrize("path", everything(), ids=" ".join)
def test_help_lines_are_short_imperative_and_without_bounds(path: tuple[str, ...]) -> None:
    command = command_of(path)
    helps = [(command.help or "").split("\n\n")[0]]
    helps += [one.help or "" for one in command.params if isinstance(one, click.Option) and not one.hidden]
    for text in helps:
        assert text[:1].isupper()
        assert text.endswith((".", ")", "]"))
        assert not re.search(r"\b(who|whom|whoever|told|tells?|looked at|mends?|befell|Say|says)\b", text), text
        assert not re.search(r"\d<=?x", text)
    for option in command.params:
        assert not isinstance(option.type, click.IntRange), "its bounds would stand in the help"


@pytest.mark.parametrize("name", LazyGroup.commands_by_name)
def test_the_list_of_commands_has_the_first_line_of_their_help(name: str) -> None:
    command = command_of((name,))
    assert " ".join((command.help or "").split("\n\n")[0].split()) == LazyGroup.commands_by_name[name][1]


def test_color_is_accepted_behind_every_command_and_shown_once(piped: Piped) -> None:
    for path in everything():
        [option] = [one for one in command_of(path).params if "--color" in one.opts]
        assert isinstance(option, click.Option)
        assert option.hidden
    assert "--color" in piped("--help")


def test_json_of_a_report_is_still_json_with_forced_colors(piped: Piped) -> None:
    assert json.loads(piped(*EXPLAIN, "--json", "--color", "always"))["incidents"]
