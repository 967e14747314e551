"""What keeps an agent from starting: one clear message with a way out, exit code 2, and nothing attached."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from ingero.capture.loop.session import session_facts
from ingero.store.writing.migrations import APPLICATION_ID
from ingero.store.writing.writer import Writer
from tests.integration.callers import Caller, build_library, caller
from tests.integration.tracing import tracing

pytestmark = pytest.mark.integration

INGERO = [sys.executable, "-m", "ingero.cli.main"]


@pytest.fixture
def traced_process(tmp_path: Path) -> Iterator[Caller]:
    """A process that could be traced; it must be as well afterwards as before."""
    with caller() as process:
        process.do("load", build_library(tmp_path / "lib"))
        yield process
        process.do("call", 3, 1)


@contextmanager
def filesystem(folder: Path, options: str) -> Iterator[Path]:
    """A filesystem of its own, in memory."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def trace(
    traced_process: Caller, *options: object, environment: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    command = [
        *prefix,
        *INGERO,
        "trace",
        "--json",
        "--duration",
        "1s",
        "--pid",
        str(traced_process.pid),
        *map(str, options),
    ]
    variables = {**os.environ, **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables)


def recorded(path: Path) -> Path:
    """A recording that is already there."""
    with Writer(path, session=session_facts(()), node="node"):
        return path


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """One message with its way out, before anything was attached."""
    print(f"\n{done.stderr.strip()}")
    assert done.returncode == 2, done.stderr
    assert done.stdout == "", "it has attached its probes"
    message, hint = done.stderr.strip().splitlines()
    assert message.startswith("error: ")
    assert hint.startswith("  hint: ")
    assert [word for word in words if word not in done.stderr] == []


def test_a_folder_instead_of_a_file_is_named(tmp_path: Path, traced_process: Caller) -> None:
    (tmp_path / "recordings").mkdir()
    done = trace(traced_process, environment={"INGERO_DB": str(tmp_path / "recordings")})
    assert_refused(done, "recordings is a folder", "--db")
    assert not list(tmp_path.glob("recordings*/*")), "nothing is left behind"


def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path, traced_process: Caller) -> None:
    (tmp_path / "file").touch()
    assert_refused(trace(traced_process, "--db", tmp_path / "file" / "r.db"), "Not a directory", "--db FILE")


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, traced_process: Caller) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(b"these are notes, not a database\n" * 400)
    assert_refused(trace(traced_process, "--db", path), "notes.db", "not a database", "mv ")
    assert path.read_bytes().startswith(b"these are notes")


def test_a_damaged_recording_comes_with_the_way_to_begin_anew(tmp_path: Path, traced_process: Caller) -> None:
    path = recorded(tmp_path / "r.db")
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    assert_refused(trace(traced_process, "--db", path), "r.db", "malformed", ".damaged")


def test_a_database_of_another_program_is_not_written(tmp_path: Path, traced_process: Caller) -> None:
    path = tmp_path / "notes.db"
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE notes(text); PRAGMA application_id = 7")
    db.close()
    before = path.read_bytes()
    assert APPLICATION_ID != 7
    assert_refused(trace(traced_process, "--db", path), "notes.db", "not a recording", "--db FILE")
    assert path.read_bytes() == before


def test_a_database_that_another_program_locks_is_named(tmp_path: Path, traced_process: Caller) -> None:
    path = recorded(tmp_path / "r.db")
    db = apsw.Connection(str(path))
    db.execute("BEGIN EXCLUSIVE")
    assert_refused(trace(traced_process, "--db", path), "another program", "fuser -v")
    db.execute("ROLLBACK")
    db.close()


def test_a_read_only_filesystem_is_named(tmp_path: Path, traced_process: Caller) -> None:
    with filesystem(tmp_path / "disk", "ro,size=1m") as disk:
        assert_refused(trace(traced_process, "--db", disk / "r.db"), "read-only", "--db FILE")


def test_a_folder_that_forbids_new_files_is_named(tmp_path: Path, traced_process: Caller) -> None:
    """Root may write everywhere else; here it is another user without the right to override."""
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    prefix = ["setpriv", "--inh-caps=-dac_override", "--bounding-set=-dac_override"]
    os.chown(folder, 65534, 65534)
    done = trace(traced_process, "--db", folder / "r.db", prefix=prefix)
    assert_refused(done, "Permission denied", "ls -ld")


def test_a_full_disk_is_named(tmp_path: Path, traced_process: Caller) -> None:
    with filesystem(tmp_path / "disk", "size=128k") as disk:
        (disk / "filler").write_bytes(bytes(120 << 10))
        assert_refused(trace(traced_process, "--db", disk / "r.db"), "the disk is full", "df -h")


def test_a_lock_that_cannot_be_made_comes_with_a_way_out(tmp_path: Path, traced_process: Caller) -> None:
    environment = {"INGERO_RUN_DIR": "/proc/ingero"}
    assert_refused(trace(traced_process, "--db", tmp_path / "r.db", environment=environment), "INGERO_RUN_DIR")


def test_too_few_open_files_are_named(tmp_path: Path, traced_process: Caller) -> None:
    prefix = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh"]
    done = trace(traced_process, "--db", tmp_path / "r.db", prefix=prefix)
    assert_refused(done, "64 open files", "ulimit -n 4096", "LimitNOFILE")


def test_the_least_limit_of_open_files_is_enough_and_a_soft_one_is_raised_to_it(
    tmp_path: Path, traced_process: Caller
) -> None:
    prefix = ["sh", "-c", 'ulimit -n 512; ulimit -Sn 64; exec "$@"', "sh"]
    done = trace(traced_process, "--db", tmp_path / "r.db", prefix=prefix)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("options", [(), ("--record=false",)])
def test_a_second_agent_is_refused_and_told_of_the_first(
    tmp_path: Path, traced_process: Caller, options: tuple[str, ...]
) -> None:
    environment = {"INGERO_RUN_DIR": str(tmp_path)}
    with tracing(tmp_path, pids=[traced_process.pid], options=options) as first:
        done = trace(traced_process, "--db", tmp_path / "second.db", environment=environment)
        into = "without recording" if options else str(first.database)
        assert_refused(done, f"pid {first.process.pid}", "since 20", into, f"--pid {traced_process.pid}")
        assert not (tmp_path / "second.db").exists()
        assert first.process.poll() is None
    assert not list(tmp_path.glob("*.lock")), "nobody is kept out any more"


def test_a_killed_agent_keeps_nobody_out(tmp_path: Path, traced_process: Caller) -> None:
    with tracing(tmp_path, pids=[traced_process.pid]) as first:
        first.process.kill()
        first.process.wait()
        again = trace(traced_process, "--db", tmp_path / "second.db", environment={"INGERO_RUN_DIR": str(tmp_path)})
    left = first.database
    assert (again.returncode, again.stderr) == (
        0,
        f"{left}: its recorder was killed; it has been ended, and is whole\n",
    )
