"""Agents of tests that are forked instead of started: what they print, how they end, and where that may not be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingero import __version__
from tests.integration.forked_agent import MODULE, ForkedAgent, can_be_forked


@contextmanager
def forked(*arguments: str, **variables: str) -> Iterator[tuple[ForkedAgent, Path]]:
    """One, and the file that it writes its errors to."""
    with tempfile.NamedTemporaryFile() as errors:
        command = [sys.executable, "-m", MODULE, *arguments]
        with ForkedAgent(command, stderr=errors.file, env={**os.environ, **variables}) as process:
            yield process, Path(errors.name)


def test_it_prints_what_the_command_prints() -> None:
    with forked("version") as (process, _):
        assert __version__ in process.stdout.read()
        assert process.wait() == process.poll() == 0


def test_it_has_the_arguments_the_variables_and_the_folder_of_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with forked("query", "--db", "absent.db", "SELECT 1", INGERO_TRACEBACK="1") as (process, errors):
        assert process.wait() == 2
        told = errors.read_text()
    assert str(tmp_path) in told or "absent.db" in told
    assert "Traceback" in told


def test_one_that_does_not_end_is_waited_for_no_longer_than_asked_and_can_be_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")  # opening it waits for a reader
    with forked("trace", "--log", str(tmp_path / "log")) as (process, _):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        assert process.poll() is None
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.kill()  # whoever has its number by now is not killed


@pytest.mark.parametrize(
    ("environment", "within", "is_forked"),
    [
        ({}, (), True),
        ({"PYTHONUNBUFFERED": "1", "GPUSIM_GPA": "internal"}, (), True),
        ({"LD_LIBRARY_PATH": "/lib"}, (), False),
        ({"PYTHONPATH": "/here"}, (), False),
        ({"PYTHONUNBUFFERED": ""}, (), False),
        ({}, ("unshare", "--pid"), False),
    ],
)
def test_what_only_a_new_program_obeys_starts_one(
    environment: dict[str, str], within: tuple[str, ...], is_forked: bool
) -> None:
    assert can_be_forked(environment, within) is is_forked
