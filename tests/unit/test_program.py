"""Commands that people paste find the program that said them, and stand as a shell takes them."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import click
import pytest

from ingero import program
from ingero.cli.main import cli
from ingero.program import again_as_root, command

SOURCE = Path(program.__file__).parent


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A script where no search finds it, in a folder whose name has a space."""
    script = tmp_path / "my venv" / "bin" / "ingero"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    return script


def start(monkeypatch: pytest.MonkeyPatch, argument: str | Path, *, path: str = "/usr/bin") -> None:
    monkeypatch.setattr(sys, "argv", [str(argument), "check"])
    monkeypatch.setenv("PATH", path)


def test_what_was_started_by_a_path_that_no_search_finds_is_named_by_it(
    monkeypatch: pytest.MonkeyPatch, venv: Path
) -> None:
    start(monkeypatch, venv)
    assert shlex.split(command("trace", as_root=True)) == ["sudo", str(venv), "trace"]
    assert shlex.split(command("explain", "--db", "a b.db")) == [str(venv), "explain", "--db", "a b.db"]


def test_what_the_shell_finds_sudo_may_not(monkeypatch: pytest.MonkeyPatch, venv: Path) -> None:
    start(monkeypatch, venv, path=f"{venv.parent}:/usr/bin")
    assert command("explain") == "ingero explain"
    assert shlex.split(command("trace", as_root=True)) == ["sudo", str(venv), "trace"]


def test_what_both_find_is_named_by_its_name(monkeypatch: pytest.MonkeyPatch, venv: Path) -> None:
    monkeypatch.setattr(program, "_SUDO_PATH", str(venv.parent))
    start(monkeypatch, venv, path=str(venv.parent))
    assert command("trace", as_root=True) == "sudo ingero trace"


def test_a_path_from_here_works_from_elsewhere(monkeypatch: pytest.MonkeyPatch, venv: Path) -> None:
    monkeypatch.chdir(venv.parent.parent)
    start(monkeypatch, "bin/ingero")
    assert shlex.split(command("check")) == [str(venv), "check"]


def test_a_module_is_started_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    start(monkeypatch, SOURCE / "cli" / "main.py")
    assert shlex.split(command("trace", as_root=True)) == ["sudo", sys.executable, "-m", "ingero.cli.main", "trace"]


@pytest.mark.parametrize("started", ["ingero", "/usr/bin/pytest", "-c", ""])
def test_who_uses_it_as_a_library_is_told_its_name(monkeypatch: pytest.MonkeyPatch, started: str) -> None:
    start(monkeypatch, started)
    assert command("trace", as_root=True) == "sudo ingero trace"


def test_what_was_given_is_repeated_word_for_word(monkeypatch: pytest.MonkeyPatch, venv: Path) -> None:
    start(monkeypatch, venv)
    given = [str(venv), "trace", "--db", "it's; rm -rf ~", "--pid", "7"]
    assert shlex.split(again_as_root(given)) == ["sudo", *given]


def test_no_other_text_names_it_for_sudo() -> None:
    """The examples of the manual are those of an installed one."""
    places = [
        f"{path.relative_to(SOURCE)}:{number}"
        for path in SOURCE.rglob("*.py")
        if path.name not in ("program.py", "examples.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"sudo ingero", line)
    ]
    assert places == []


def test_no_way_out_names_it_as_if_it_were_installed() -> None:
    names = "|".join(cli.list_commands(click.Context(cli)))
    places = [
        f"{path.relative_to(SOURCE)}:{number}"
        for path in SOURCE.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(rf"(hint|way_out|again) ?=.*\bingero ({names})\b", line)
    ]
    assert places == []
