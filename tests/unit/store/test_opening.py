"""Opening a recording: it is never written, also on read-only storage, and what is none is refused with a way out."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from ingero.store.errors import (
    DirectoryError,
    EmptyDatabaseError,
    ForeignDatabaseError,
    NoDatabaseError,
    NotADatabaseError,
    NotReadableError,
)
from ingero.store.opening.opening import open_database
from ingero.store.reader import open_reader
from tests.unit.reader_recording import make_recording


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_recording(tmp_path_factory.mktemp("opening") / "a.db")


def read_all(path: Path) -> None:
    with open_reader(path) as reader:
        for (table,) in list(reader.connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")):
            list(reader.connection.execute(f"SELECT * FROM {table}"))


def test_reader_cannot_write(recorded: Path) -> None:
    with open_reader(recorded) as reader:
        for sql in ("DELETE FROM raw_events", "CREATE TABLE t(a)", "PRAGMA user_version = 5"):
            with pytest.raises((apsw.AuthError, apsw.ReadOnlyError, apsw.SQLError)):
                reader.connection.execute(sql)


def test_missing_file_says_how_to_record_one(tmp_path: Path) -> None:
    with pytest.raises(NoDatabaseError) as caught:
        open_reader(tmp_path / "none.db")
    assert "ingero trace" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_no_database_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"x" * 4096)
    with pytest.raises(NotADatabaseError) as caught:
        open_reader(tmp_path / "a.db")
    assert ".recover" in caught.value.hint


def test_damaged_database_says_so(tmp_path: Path, recorded: Path) -> None:
    damaged = tmp_path / "a.db"
    content = bytearray(recorded.read_bytes())
    content[100:4096] = b"\xff" * 3996
    damaged.write_bytes(content)
    with pytest.raises(NotADatabaseError):
        open_reader(damaged)


def test_folder_is_named_as_one(tmp_path: Path) -> None:
    with pytest.raises(DirectoryError) as caught:
        open_reader(tmp_path)
    assert caught.value.hint == f"--db {tmp_path / 'ingero.db'}"


def test_file_into_which_nothing_was_written_is_empty_and_not_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()
    with pytest.raises(EmptyDatabaseError) as caught:
        open_reader(tmp_path / "a.db")
    assert "ingero trace" in caught.value.hint


def test_damage_that_is_met_later_says_so_too(tmp_path: Path, recorded: Path) -> None:
    content = bytearray(recorded.read_bytes())
    content[len(content) // 2 :] = b"\xa5" * (len(content) - len(content) // 2)
    (tmp_path / "a.db").write_bytes(content)
    with pytest.raises(NotADatabaseError, match="malformed"):
        read_all(tmp_path / "a.db")


def test_named_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.db")
    with pytest.raises(NotADatabaseError, match="not a regular file"):
        open_reader(tmp_path / "a.db")


@pytest.mark.parametrize(
    ("name", "error"), [(f"{'n' * 300}.db", NotReadableError), ("file/a.db", NoDatabaseError)], ids=["long", "below"]
)
def test_name_that_no_file_can_have_is_told(tmp_path: Path, name: str, error: type[Exception]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(error):
        open_reader(tmp_path / name)


def test_other_sqlite_databases_are_refused(tmp_path: Path) -> None:
    db = apsw.Connection(str(tmp_path / "a.db"))
    db.execute("CREATE TABLE customers(id)")
    db.close()
    with pytest.raises(ForeignDatabaseError):
        open_reader(tmp_path / "a.db")


@pytest.fixture
def shelf() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path
        path.chmod(0o755)


def as_nobody(path: Path) -> str:
    """What somebody without any rights gets from opening `path`: a count of events, or the error's name."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            with open_reader(path) as reader:
                answer = str(reader.connection.execute("SELECT count(*) FROM events").fetchall()[0][0])
        except Exception as error:
            answer = type(error).__name__
        os.write(write_end, answer.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def in_log_mode(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    list(db.execute("PRAGMA journal_mode = wal"))
    return db


def test_file_on_read_only_storage_is_read_without_its_log(recorded: Path, shelf: Path) -> None:
    copy = Path(shutil.copy(recorded, shelf / "a.db"))
    in_log_mode(copy).close()
    copy.chmod(0o444)
    shelf.chmod(0o555)
    assert as_nobody(copy) == "54"
    assert [file.name for file in shelf.iterdir()] == ["a.db"]


def test_file_in_a_folder_that_is_closed_is_not_taken_for_missing(recorded: Path, shelf: Path) -> None:
    copy = Path(shutil.copy(recorded, shelf / "a.db"))
    shelf.chmod(0o700 if os.getuid() == 0 else 0o000)
    assert as_nobody(copy) == NotReadableError.__name__


def test_log_that_cannot_be_read_is_an_error_and_not_a_gap(recorded: Path, shelf: Path, tmp_path: Path) -> None:
    live = Path(shutil.copy(recorded, tmp_path / "a.db"))
    db = in_log_mode(live)
    db.execute("DELETE FROM raw_events WHERE id < 10")
    for name in ("a.db", "a.db-wal"):
        Path(shutil.copy(tmp_path / name, shelf / name)).chmod(0o444)
    db.close()
    shelf.chmod(0o555)
    assert as_nobody(shelf / "a.db") == NotReadableError.__name__


def test_reading_leaves_the_file_as_it_is(recorded: Path) -> None:
    before = (recorded.read_bytes(), recorded.stat().st_mtime_ns)
    opened = open_database(recorded)
    assert opened.has_exact_totals
    assert opened.older_version == ""
    opened.db.execute("SELECT count(*) FROM events").fetchall()
    opened.db.close()
    assert (recorded.read_bytes(), recorded.stat().st_mtime_ns) == before
    assert [file.name for file in recorded.parent.iterdir()] == ["a.db"]
