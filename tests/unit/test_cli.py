"""The command line: help everywhere, errors with a way out, and small commands that start fast."""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ingero import __version__
from ingero.cli.main import LazyGroup
from ingero.discover.kernel import read_kernel
from tests.unit.run_ingero import Answer, run_ingero

COMMANDS = list(LazyGroup.commands_by_name)
Run = Callable[..., Answer]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `ingero ARGUMENTS`; returns exit code, standard output and standard error."""
    return partial(run_ingero, monkeypatch, capsys)


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command(run: Run, flag: str) -> None:
    code, out, _ = run(flag)
    assert code == 0
    assert all(re.search(rf"\b{name}\b", out) for name in COMMANDS)


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(run: Run, name: str, flag: str) -> None:
    code, out, _ = run(name, flag)
    assert code == 0
    assert f"ingero {name}" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_the_command_says(name: str) -> None:
    command = LazyGroup(name="ingero").get_command(None, name)  # type: ignore[arg-type]  # the context is not used
    listed = LazyGroup.commands_by_name[name][1]
    assert command is not None
    assert command.help is not None
    assert command.help.split()[:2] == listed.split()[:2]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_refused(run: Run, name: str) -> None:
    code, out, err = run(name, "--frobnicate")
    assert (code, out) == (2, "")
    assert "--frobnicate" in err


def test_an_unknown_command_is_refused(run: Run) -> None:
    code, out, err = run("frobnicate")
    assert (code, out) == (2, "")
    assert "frobnicate" in err


def test_version_names_version_commit_and_day(run: Run) -> None:
    code, out, _ = run("version")
    assert code == 0
    pattern = r"ingero (\S+) \(commit (unknown|[0-9a-f]{7,}(-dirty)?), built (unknown|\d{4}-\d\d-\d\d)\)\n"
    found = re.fullmatch(pattern, out)
    assert found is not None, out
    assert found[1] == __version__


def test_the_version_option_names_the_version(run: Run) -> None:
    assert run("--version")[:2] == (0, f"ingero, version {__version__}\n")


def test_a_missing_database_comes_with_the_command_that_records_one(run: Run, tmp_path: Path) -> None:
    code, out, err = run("explain", "--db", str(tmp_path / "absent.db"))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "absent.db" in err
    assert "hint: " in err
    assert "ingero trace" in err


def test_a_file_that_is_no_database_is_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("not a database, whatever it is called\n" * 100)
    code, out, err = run("explain", "--db", str(path))
    assert (code, out) == (2, "")
    assert "notes.db" in err
    assert "hint: " in err


@pytest.mark.parametrize("arguments", [("explain", "--since", "soon"), ("trace", "--duration", "soon")])
def test_a_wrong_duration_comes_with_an_example(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "'soon'" in err
    assert "90s" in err


@pytest.mark.parametrize(
    ("pids", "complaint"),
    [
        ("1,python", "'1,python' is not a list of process ids like 1234,5678"),
        ("4194305", "no process 4194305 is running"),
    ],
)  # 4194304 is the highest pid of any Linux (PID_MAX_LIMIT)
def test_a_wrong_process_id_is_named(run: Run, pids: str, complaint: str) -> None:
    code, out, err = run("trace", "--pid", pids)
    assert (code, out) == (2, "")
    assert complaint in re.sub(r"\s*│\s*", " ", err)


def test_tracing_without_capabilities_comes_with_the_command_that_works(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = dataclasses.replace(read_kernel(), capabilities=frozenset(), is_root=False, is_init_pid_namespace=True)
    monkeypatch.setattr("ingero.cli.trace.recording.read_kernel", lambda: kernel)
    code, out, err = run("trace", "--duration", "5s")
    assert (code, out) == (2, "")
    assert "sudo ingero trace --duration 5s" in err


def test_version_imports_nothing_that_is_slow_to_start() -> None:
    program = (
        "import sys; from ingero.cli.main import main; sys.argv = ['ingero', 'version']; main(); "
        "print(sorted({'numpy', 'apsw', 'yaml', 'pynvml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_bug_is_no_answer(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(_path: Path, **_options: object) -> None:
        raise RuntimeError("gremlins")

    monkeypatch.setattr("ingero.cli.explain.open_reader", broken)
    code, out, err = run("explain", "--db", str(tmp_path / "any.db"))
    assert (code, out) == (2, "")
    assert "RuntimeError: gremlins" in err
