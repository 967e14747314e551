"""Files of earlier builds and of Ingero 0.x: each is read, and a recorder that meets one loses nothing of it."""

from __future__ import annotations

import errno
import lzma
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from ingero.diagnose.diagnosis import diagnose
from ingero.store.errors import InUseError, NewerDatabaseError, NotWritableError, OtherBuildError, StoreError
from ingero.store.opening.opening import open_database
from ingero.store.reader import open_reader
from ingero.store.records import SessionFacts
from ingero.store.writing import set_aside
from ingero.store.writing.migrations import NEWEST_VERSION, pragma
from ingero.store.writing.writer import Writer

ROOT = Path(__file__).resolve().parents[2]
OLDER = sorted([*ROOT.glob("tests/data/*/*.db.xz"), *ROOT.glob("examples/recordings/*.db")])
BUILD = ROOT / "tests/data/builds/before-clocks.db.xz"
WRITTEN_S = 1_790_000_000  # 2026-09-21
DIAGNOSED = {"h100", "h200"}  # by test_real_gpu.py, which compares what is found; a second of CPU each


def unpacked(source: Path, to: Path) -> Path:
    raw = source.read_bytes()
    to.write_bytes(lzma.decompress(raw) if source.suffix == ".xz" else raw)
    os.utime(to, (WRITTEN_S, WRITTEN_S))
    return to


@pytest.fixture(params=OLDER, ids=lambda path: path.name.partition(".")[0])
def any_older(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpacked(request.param, tmp_path / "ingero.db")


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """One that this build cannot go on with."""
    return unpacked(BUILD, tmp_path / "ingero.db")


def recorder(path: Path) -> Writer:
    facts = SessionFacts(uuid="u", started_ns=time.time_ns(), ingero_ver="0.1.0")
    return Writer(path, session=facts, node="n", sets_aside=True)


def record(path: Path) -> Path | None:
    with recorder(path) as writer:
        return writer.set_aside


def rows_of(path: Path, view: str) -> int:
    with open_reader(path) as reader:
        return int(reader.connection.execute(f"SELECT count(*) FROM {view}").fetchall()[0][0])


def events_of(path: Path) -> int:
    return rows_of(path, "events")


def test_there_are_recordings_of_several_builds() -> None:
    assert {path.parent.name for path in OLDER} == {"builds", "h100", "h200", "ingero-0.x", "recordings"}


def test_it_is_read(any_older: Path, request: pytest.FixtureRequest) -> None:
    before = any_older.read_bytes()
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    db = apsw.Connection(f"{any_older.as_uri()}?mode=ro&immutable=1", flags=flags)
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    ((stored,),) = db.execute(f"SELECT count(*) FROM {'raw_events' if 'raw_events' in tables else 'events'}")
    db.close()
    with open_reader(any_older) as reader:
        window = reader.window(None, time.time_ns())
        assert window is not None
        assert window.duration_ns > 0
        if request.node.callspec.params["any_older"].parent.name not in DIAGNOSED:
            diagnose(reader, window)
        assert reader.connection.execute("SELECT sum(count) FROM op_stats").fetchall()[0][0] > 0
    assert events_of(any_older) == stored
    assert any_older.read_bytes() == before


def test_a_recorder_goes_on_with_it_or_keeps_it_whole_under_another_name(any_older: Path) -> None:
    before, events = any_older.read_bytes(), events_of(any_older)
    kept = record(any_older)
    db = apsw.Connection(str(any_older))
    assert pragma(db, "user_version") == NEWEST_VERSION
    db.close()
    if kept is None:
        assert events_of(any_older) == events
        return
    assert kept == any_older.with_name("ingero.until-2026-09-21.db")
    assert kept.read_bytes() == before
    assert (events_of(kept), events_of(any_older)) == (events, 0)
    assert sorted(file.name for file in kept.parent.iterdir()) == ["ingero.db", kept.name]


def test_only_what_this_build_made_is_gone_on_with(tmp_path: Path) -> None:
    kept = {
        source.parent.name: record(unpacked(source, tmp_path / f"{source.name}.db")) is not None for source in OLDER
    }
    assert kept == {"builds": True, "h100": True, "h200": True, "ingero-0.x": True, "recordings": False}


def with_log(path: Path, to: Path, table: str) -> Path:
    """As a recorder that was killed leaves it: that a row has gone stands in the log beside it only."""
    db = apsw.Connection(str(path))
    list(db.execute("PRAGMA journal_mode = wal"))
    db.execute(f"DELETE FROM {table} WHERE rowid = (SELECT max(rowid) FROM {table})")
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{to}{suffix}")
    db.close()
    return to


@pytest.mark.parametrize(
    ("source", "table", "view"),
    [
        (BUILD, "raw_epochs", "sync_intervals"),
        (ROOT / "tests/data/ingero-0.x/sample-gpu-node-01.db.xz", "events", "events"),
    ],
    ids=["build", "0.x"],
)
def test_what_is_in_the_log_beside_it_is_kept(source: Path, table: str, view: str, tmp_path: Path) -> None:
    whole = rows_of(unpacked(source, tmp_path / "whole.db"), view)
    path = with_log(unpacked(source, tmp_path / "a.db"), tmp_path / "ingero.db", table)
    assert rows_of(path, view) == whole - 1
    kept = record(path)
    assert kept is not None
    assert [file.name for file in tmp_path.glob("ingero*-*[lm]")] == []
    assert rows_of(kept, view) == whole - 1


def test_nothing_that_lies_there_is_overwritten(older: Path) -> None:
    taken = older.with_name("ingero.until-2026-09-21.db")
    taken.write_text("of somebody else")
    older.with_name("ingero.until-2026-09-21-2.db").symlink_to("nowhere")
    kept = record(older)
    assert kept is not None
    assert kept.name == "ingero.until-2026-09-21-3.db"
    assert taken.read_text() == "of somebody else"


def test_a_second_one_of_that_day_has_a_name_of_its_own(older: Path) -> None:
    first = record(older)
    second = record(unpacked(BUILD, older))
    assert first is not None
    assert second is not None
    assert first.read_bytes() == second.read_bytes()
    assert first != second


def test_it_is_renamed_where_files_cannot_have_two_names(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "as on FAT")

    monkeypatch.setattr(os, "link", link)
    before = older.read_bytes()
    older.with_name("ingero.until-2026-09-21.db").write_text("of somebody else")
    kept = record(older)
    assert kept is not None
    assert (kept.name, kept.read_bytes() == before) == ("ingero.until-2026-09-21-2.db", True)


@pytest.fixture
def open_elsewhere(older: Path) -> Iterator[apsw.Connection]:
    """Somebody who has it open in write-ahead mode: what they close or write next has the old name."""
    db = apsw.Connection(str(older))
    list(db.execute("PRAGMA journal_mode = wal; SELECT count(*) FROM raw_epochs"))
    yield db
    db.close()


def test_it_keeps_its_name_while_somebody_has_it_open(
    older: Path, open_elsewhere: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_aside, "BUSY_MS", 0)
    with pytest.raises(InUseError) as caught, recorder(older):
        pass
    assert "fuser" in caught.value.hint
    assert older.exists()
    assert list(older.parent.glob("*until*")) == []
    open_elsewhere.close()
    assert record(older) is not None


def test_a_link_to_it_is_left_alone(older: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(older)
    before = older.read_bytes()
    with pytest.raises(NotWritableError, match="link"), recorder(link):
        pass
    assert link.is_symlink()
    assert older.read_bytes() == before


def test_whoever_does_not_ask_for_it_gets_an_error(older: Path) -> None:
    writer = Writer(older, session=SessionFacts(uuid="u", started_ns=1), node="n")
    with pytest.raises(OtherBuildError), writer:
        pass
    assert [file.name for file in older.parent.iterdir()] == ["ingero.db"]


def as_nobody(path: Path) -> str:
    """What a recorder without any rights gets."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        answer = "recorded"
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            record(path)
        except StoreError as error:
            answer = f"{type(error).__name__}\n{error}\n{error.hint}"
        finally:
            os.write(write_end, answer.encode())
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def test_in_a_folder_that_cannot_be_written_it_says_where_to_record_instead(older: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copy(older, f"{folder}/ingero.db"))
        path.chmod(0o666)
        Path(folder).chmod(0o555)
        name, message, hint = as_nobody(path).splitlines()
        assert name == "NotWritableError"
        assert "Permission denied" in message
        assert "--db FILE" in hint
        assert [file.name for file in Path(folder).iterdir()] == ["ingero.db"]
        assert path.read_bytes() == older.read_bytes()


@pytest.mark.parametrize(
    ("written_by", "said"),
    [
        ("0.3.1", "ingero 0.3.1 reads"),
        ("1.0.0rc1", "ingero 1.0.0rc1 reads"),
        ("0.1.0", "a later ingero reads"),
        ("$(reboot) 9.9", "a later ingero reads"),
        ("9" * 5000, "a later ingero reads"),
    ],
)
def test_a_newer_recording_says_which_version_reads_it(tmp_path: Path, written_by: str, said: str) -> None:
    path = tmp_path / "a.db"
    record(path)
    db = apsw.Connection(str(path))
    db.execute("UPDATE raw_sessions SET ingero_ver = ?", (written_by,))
    db.execute(f"PRAGMA user_version = {NEWEST_VERSION + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(NewerDatabaseError, match=said) as reading:
        open_database(path)
    with pytest.raises(NewerDatabaseError, match=said) as recording:
        record(path)
    assert str(reading.value) == str(recording.value)
    assert f"versions up to {NEWEST_VERSION}" in str(reading.value)
    assert "--db FILE" in recording.value.hint
    assert (f"'ingero>={written_by}'" in reading.value.hint) == ("later" not in said)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "table", ["CREATE TABLE raw_sessions(a)", "CREATE VIEW raw_sessions AS SELECT 1 AS ingero_ver", "CREATE TABLE b(c)"]
)
def test_a_newer_recording_may_have_any_tables(tmp_path: Path, table: str) -> None:
    db = apsw.Connection(str(tmp_path / "a.db"))
    db.execute(f"{table}; PRAGMA application_id = {0x696E6772}; PRAGMA user_version = {NEWEST_VERSION + 1}")
    db.close()
    with pytest.raises(NewerDatabaseError, match="a later ingero reads"):
        open_database(tmp_path / "a.db")
