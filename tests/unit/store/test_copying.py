"""Copies of recordings: `ingero copy` takes the log along, and a file that lacks its log says so."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from ingero.serve.sql import run_sql
from ingero.store.errors import EmptyDatabaseError, ForeignDatabaseError, RecorderRunningError, StoreError
from ingero.store.merge import merge
from ingero.store.reader import open_reader
from ingero.store.records import SessionFacts
from ingero.store.writing import tables
from ingero.store.writing.copying import copy_recording
from ingero.store.writing.recording import finish_killed
from ingero.store.writing.whole_file import NewFileError
from ingero.store.writing.writer import Writer
from tests.unit.reader_recording import make_recording
from tests.unit.run_ingero import run_ingero

SECOND_NS = 1_000_000_000


def lose(writer: Writer, count: int, at_ns: int) -> None:
    rows = tables.DROPS.rows(count, session=writer.session, start_ns=at_ns, counter="ring_full", reason="r", count=1)
    writer.append(tables.DROPS, rows)
    writer.flush()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Path, Writer]]:
    """A recording that goes on, of which nothing is in the file itself yet but its tables."""
    path = tmp_path / "live.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=time.time_ns()), node="n") as writer:
        lose(writer, 500, time.time_ns())
        yield path, writer


def drops(path: Path) -> int:
    return int(str(run_sql(path, "SELECT count(*) FROM drops WHERE counter = 'ring_full'").rows[0][0]))


def stop_reasons(path: Path) -> list[tuple[object, ...]]:
    return run_sql(path, "SELECT stop_reason FROM sessions").rows


def test_a_copy_holds_what_is_in_the_log_and_is_one_file(live: tuple[Path, Writer], tmp_path: Path) -> None:
    path, writer = live
    copied = copy_recording(path, tmp_path / "now.db")
    lose(writer, 100, time.time_ns())  # recording goes on
    assert copied.was_live
    assert drops(tmp_path / "now.db") == 500
    assert drops(path) == 600
    assert sorted(one.name for one in tmp_path.glob("*now*")) == ["now.db"]
    assert (tmp_path / "now.db").read_bytes()[18:20] == b"\x01\x01"  # no log is needed to read it
    assert stop_reasons(tmp_path / "now.db") == [("copied while it was recorded",)]
    with open_reader(tmp_path / "now.db") as reader:
        assert not reader.is_live(time.time_ns())
        assert not reader.missing_end


def test_a_copy_of_a_recording_that_was_killed_says_so(live: tuple[Path, Writer], tmp_path: Path) -> None:
    path, _ = live
    for suffix in ("", "-wal"):  # as SIGKILL leaves them
        shutil.copy(f"{path}{suffix}", tmp_path / f"killed.db{suffix}")
    copied = copy_recording(tmp_path / "killed.db", tmp_path / "b.db", clock=lambda: time.time_ns() + 60 * SECOND_NS)
    assert not copied.was_live
    assert drops(tmp_path / "b.db") == 500
    assert stop_reasons(tmp_path / "b.db") == [("killed",)]


def test_a_copy_of_a_recording_that_has_ended_is_that_recording(tmp_path: Path) -> None:
    path = make_recording(tmp_path / "a.db")
    copied = copy_recording(path, tmp_path / "b.db")
    assert not copied.was_live
    with open_reader(path) as one, open_reader(tmp_path / "b.db") as other:
        assert one.sessions() == other.sessions()
        assert one.op_totals(one.window(None, 0)) == other.op_totals(other.window(None, 0))  # type: ignore[arg-type]


def test_nothing_is_overwritten_or_left_behind(live: tuple[Path, Writer], tmp_path: Path) -> None:
    path, _ = live
    (tmp_path / "there.db").write_bytes(b"")
    with pytest.raises(NewFileError, match="exists already"):
        copy_recording(path, tmp_path / "there.db")
    with pytest.raises(EmptyDatabaseError):
        copy_recording(tmp_path / "there.db", tmp_path / "b.db")
    other = apsw.Connection(str(tmp_path / "other.db"))
    other.execute("CREATE TABLE t(a)")
    other.close()
    with pytest.raises(ForeignDatabaseError):
        copy_recording(tmp_path / "other.db", tmp_path / "b.db")
    assert not list(tmp_path.glob("*b.db*"))


def test_a_hostile_recording_is_not_copied(tmp_path: Path) -> None:
    path = make_recording(tmp_path / "a.db")
    db = apsw.Connection(str(path))
    db.execute("UPDATE raw_sessions SET stopped_ns = NULL")
    db.execute("CREATE TRIGGER t AFTER UPDATE ON raw_sessions BEGIN DELETE FROM raw_events; END")
    db.close()
    with pytest.raises(StoreError):
        copy_recording(path, tmp_path / "b.db")
    assert not list(tmp_path.glob("*b.db*"))


def test_a_schema_that_is_no_text_is_damage(tmp_path: Path) -> None:
    path = make_recording(tmp_path / "a.db")
    db = sqlite3.connect(path)
    db.execute("PRAGMA writable_schema = 1")
    comment = "x'202f2a209d202a2f'"  # SQLite does not mind what is in it
    db.execute(
        f"UPDATE sqlite_schema SET sql = CAST(CAST(sql AS BLOB) || {comment} AS TEXT) WHERE name = 'raw_sessions'"
    )
    db.commit()
    db.close()
    with pytest.raises(StoreError):
        copy_recording(path, tmp_path / "b.db")
    assert not list(tmp_path.glob("*b.db*"))


def test_a_file_copied_without_its_log_says_what_is_missing(
    live: tuple[Path, Writer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = live
    copy = tmp_path / "cp.db"
    shutil.copy(path, copy)
    code, _, err = run_ingero(monkeypatch, capsys, "explain", "--db", str(copy))
    assert code == 2
    assert "lacks all that was recorded: it was in the log, cp.db-wal" in err
    assert "ingero copy" in err
    code, _, err = run_ingero(monkeypatch, capsys, "query", "--db", str(copy), "SELECT count(*) FROM sessions")
    assert code == 0
    assert "note: The file lacks all that was recorded" in err


def test_a_part_that_is_missing_is_said_with_its_begin(
    live: tuple[Path, Writer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, writer = live
    db = apsw.Connection(str(path))
    list(db.execute("SELECT count(*) FROM sqlite_schema"))
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    lose(writer, 100, time.time_ns())  # in the log alone
    copy = tmp_path / "cp.db"
    shutil.copy(path, copy)
    db.close()
    assert drops(copy) == 500
    code, out, _ = run_ingero(monkeypatch, capsys, "explain", "--db", str(copy))
    assert code == 0
    assert "The file lacks what was recorded after 20" in out
    (note,) = merge([copy], tmp_path / "merged.db").notes
    assert note.startswith(f"{copy} lacks what was recorded after 20")
    code, out, _ = run_ingero(monkeypatch, capsys, "explain", "--json", "--db", str(copy))
    assert "what was recorded after 20" in out
    code, out, err = run_ingero(monkeypatch, capsys, "query", "--db", str(copy), "SELECT count(*) FROM drops")
    assert "The file lacks what was recorded after 20" in err


def test_a_recording_that_goes_on_or_has_ended_lacks_nothing(live: tuple[Path, Writer], tmp_path: Path) -> None:
    path, _ = live
    for one in (path, make_recording(tmp_path / "a.db")):
        with open_reader(one) as reader:
            assert not reader.missing_end


def test_copy_says_until_when(
    live: tuple[Path, Writer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = live
    (tmp_path / "folder").mkdir()
    code, out, err = run_ingero(monkeypatch, capsys, "copy", str(path), str(tmp_path / "folder"))
    assert (code, err) == (0, "")
    assert out.startswith(f"{tmp_path / 'folder' / 'live.db'} (")
    assert out.endswith("; recording goes on\n")


def test_the_recording_of_a_killed_agent_is_ended_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=time.time_ns()), node="n") as writer:
        lose(writer, 500, time.time_ns())
        killed = tmp_path / "killed.db"
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{killed}{suffix}")
        with pytest.raises(RecorderRunningError):
            finish_killed(path, {os.getuid()})
    assert not finish_killed(killed, {os.getuid() + 1}), "somebody else's file"
    assert finish_killed(killed, {os.getuid()})
    assert sorted(one.name for one in tmp_path.glob("killed*")) == ["killed.db"]
    assert drops(killed) == 500
    assert stop_reasons(killed) == [("killed",)]
    assert not finish_killed(killed, {os.getuid()}), "it is whole"
    assert not finish_killed(tmp_path / "none.db", {os.getuid()})
    (tmp_path / "link.db").symlink_to(killed)
    assert not finish_killed(tmp_path / "link.db", {os.getuid()})
