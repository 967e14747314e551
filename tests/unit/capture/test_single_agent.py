"""One agent at a time: who has the lock, who is told, and when it is free again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingero.capture.loop.single_agent import RUN_FOLDER_VARIABLE, AgentRunningError, NoRunFolderError, only_agent

HOLDER = """
import os, sys
from pathlib import Path
from ingero.capture.loop.single_agent import only_agent
with only_agent(Path("/data/first.db"), os.environ):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, RUN_FOLDER_VARIABLE: str(folder)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, "--pid", "7"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_agent_is_told_who_the_first_is(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        with pytest.raises(AgentRunningError) as refused, only_agent(None, {}, folder=tmp_path):
            pass
        first.communicate()
    message = str(refused.value)
    assert f"pid {first.pid}" in message
    assert "since 20" in message
    assert "-c --pid 7" in message
    assert "into /data/first.db" in message
    assert f"kill {first.pid}" in refused.value.hint
    assert "ingero explain --db /data/first.db" in refused.value.hint


def test_a_killed_agent_leaves_no_lock(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        first.kill()
        first.wait()
        with only_agent(None, {}, folder=tmp_path) as facts:
            assert facts.pid == os.getpid()
            assert facts.left == "/data/first.db", "which is ended now"


def test_the_lock_is_gone_after_a_good_end(tmp_path: Path) -> None:
    with only_agent(Path("r.db"), {}, folder=tmp_path / "run"):
        assert list((tmp_path / "run").iterdir())
    assert not list((tmp_path / "run").iterdir())


def test_the_environment_says_where_the_lock_is(tmp_path: Path) -> None:
    with only_agent(None, {RUN_FOLDER_VARIABLE: str(tmp_path)}):
        assert [path.name for path in tmp_path.iterdir()] == ["agent.lock"]


def test_agents_with_folders_of_their_own_run_side_by_side(tmp_path: Path) -> None:
    with only_agent(None, {}, folder=tmp_path / "a"), only_agent(None, {}, folder=tmp_path / "b"):
        assert len(list(tmp_path.glob("*/agent.lock"))) == 2


def test_a_folder_that_cannot_be_made_comes_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NoRunFolderError) as refused, only_agent(None, {}, folder=tmp_path / "file" / "run"):
        pass
    assert RUN_FOLDER_VARIABLE in refused.value.hint


def test_a_file_of_another_program_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "agent.lock").write_text("12345\n")
    with pytest.raises(NoRunFolderError) as refused, only_agent(None, {}, folder=tmp_path):
        pass
    assert "another program" in str(refused.value)
    assert (tmp_path / "agent.lock").read_text() == "12345\n"


def test_a_lock_whose_holder_has_not_written_its_name_is_a_lock(tmp_path: Path) -> None:
    with only_agent(None, {}, folder=tmp_path):
        (tmp_path / "agent.lock").write_text("")
        with pytest.raises(AgentRunningError) as refused, only_agent(None, {}, folder=tmp_path):
            pass
    assert "another ingero" in str(refused.value)
