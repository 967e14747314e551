"""Databases that somebody made to run, block, delete or take what is not theirs."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import apsw
import pytest

from ingero.serve.sql import UnknownTableError, run_sql
from ingero.store.errors import (
    HostileDatabaseError,
    NotADatabaseError,
    OldSqliteError,
    OtherBuildError,
    StoreError,
    StrangeValuesError,
)
from ingero.store.opening.distrust import StepLimit, distrust, require_safe_sqlite
from ingero.store.opening.opening import open_database
from ingero.store.reader import open_reader
from ingero.store.records import SessionFacts
from ingero.store.sql_text import quoted
from ingero.store.writing.writer import Writer

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"


def change(path: Path, sql: str) -> Path:
    """Whoever wrote the file, with SQLite's own program."""
    db = apsw.Connection(str(path))
    db.execute("PRAGMA legacy_alter_table = 1")
    db.execute(sql)
    db.close()
    return path


def record(path: Path) -> None:
    with Writer(path, session=SessionFacts(uuid="u", started_ns=1), node="n"):
        pass


def recording(folder: Path) -> Path:
    """A small whole recording."""
    path = folder / "a.db"
    record(path)
    return path


def refused_by_recorder(path: Path, error: type[StoreError]) -> str:
    before = path.read_bytes()
    with pytest.raises(error) as caught:
        record(path)
    assert path.read_bytes() == before
    return str(caught.value)


def test_name_of_a_view_is_never_run_as_sql(tmp_path: Path) -> None:
    made = tmp_path / "made"
    name = f"""x"; COMMIT; VACUUM INTO '{made}'; BEGIN; CREATE VIEW x AS SELECT 1; --"""
    path = change(recording(tmp_path), f"CREATE VIEW {quoted(name)} AS SELECT 1; CREATE VIEW x AS SELECT 1")
    record(path)
    assert not made.exists()
    assert list(apsw.Connection(str(path)).execute("SELECT name FROM sqlite_schema WHERE name = 'x'")) == []


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("CREATE TRIGGER t AFTER INSERT ON raw_sessions BEGIN DELETE FROM raw_stacks; END", HostileDatabaseError),
        ("CREATE INDEX i ON raw_sessions(length(printf('%.9000000c', node)))", HostileDatabaseError),
        ("CREATE TABLE mine(a CHECK (a > 1))", HostileDatabaseError),
        ("CREATE VIRTUAL TABLE mine USING fts5(a)", HostileDatabaseError),
        ("ALTER TABLE raw_drops ADD COLUMN a INTEGER CHECK (length(printf('%.9000000c', 'a')) > 1)", OtherBuildError),
        ("ALTER TABLE raw_drops ADD COLUMN a TEXT AS (printf('%.9000000c', 'a'))", OtherBuildError),
        ("PRAGMA user_version = -5", StoreError),
    ],
)
def test_recorder_leaves_a_file_alone_that_would_run_what_somebody_wrote(
    tmp_path: Path, sql: str, error: type[StoreError]
) -> None:
    refused_by_recorder(change(recording(tmp_path), sql), error)


def test_text_under_another_kind_of_object_is_looked_at_as_what_it_is(tmp_path: Path) -> None:
    path = change(
        recording(tmp_path),
        "CREATE INDEX i ON raw_sessions(abs(session)); PRAGMA writable_schema = 1; "
        "UPDATE sqlite_schema SET type = 'view' WHERE name = 'i'",
    )
    refused_by_recorder(path, StoreError)


def test_comments_and_space_do_not_make_another_schema(tmp_path: Path) -> None:
    path = change(
        recording(tmp_path),
        "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET "
        "sql = replace(sql, '(', '( -- it''s /* new ' || char(10)) WHERE name = 'raw_drops'",
    )
    record(path)


def test_trigger_does_not_run_in_what_is_read(tmp_path: Path) -> None:
    path = change(recording(tmp_path), "CREATE TRIGGER t AFTER INSERT ON raw_sessions BEGIN SELECT 1; END")
    with open_reader(path) as reader:
        assert len(reader.sessions()) == 1


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        (
            "ALTER TABLE raw_processes RENAME TO kept; "
            f"CREATE VIEW raw_processes AS {ENDLESS} SELECT kept.* FROM c, kept WHERE x < 0",
            "raw_processes is a view",
        ),
        (
            "DROP TABLE raw_strings; CREATE VIRTUAL TABLE raw_strings USING fts5(string, text)",
            "raw_strings is a virtual",
        ),
        (
            "DROP TABLE raw_strings; "
            "CREATE TABLE raw_strings(string INTEGER, text TEXT AS (printf('%.900000000c', 'A'))) STRICT",
            "a column of its table raw_strings is computed",
        ),
        ("DROP TABLE raw_strings; CREATE TABLE raw_strings(string, text)", "takes values of any type"),
    ],
)
def test_reader_wants_tables_where_tables_are_meant(tmp_path: Path, sql: str, says: str) -> None:
    path = recording(tmp_path)
    for view in views_of(path):
        change(path, f"DROP VIEW {view}")
    with pytest.raises(HostileDatabaseError, match=says):
        open_database(change(path, sql))


def views_of(path: Path) -> list[str]:
    db = apsw.Connection(str(path))
    names = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")]
    db.close()
    return names


def test_views_of_the_file_are_not_asked(tmp_path: Path) -> None:
    path = change(
        recording(tmp_path), f"DROP VIEW sessions; CREATE VIEW sessions AS {ENDLESS} SELECT max(x) AS id FROM c"
    )
    assert run_sql(path, "SELECT id FROM sessions").rows == [(1,)]


def test_what_a_file_holds_beside_is_not_published(tmp_path: Path) -> None:
    path = change(recording(tmp_path), f"CREATE VIEW more AS {ENDLESS} SELECT max(x) FROM c; CREATE TABLE other(a)")
    for name in ("more", "other"):
        with pytest.raises(UnknownTableError):
            run_sql(path, f"SELECT * FROM {name}")


def test_schema_of_thousands_of_objects_is_refused(tmp_path: Path) -> None:
    path = change(recording(tmp_path), ";".join(f"CREATE VIEW v{i} AS SELECT 1" for i in range(1000)))
    with pytest.raises(HostileDatabaseError, match="tables, views and indexes"):
        open_database(path)


def test_text_longer_than_any_of_ours_is_damage(tmp_path: Path) -> None:
    path = change(recording(tmp_path), "UPDATE raw_sessions SET node = printf('%.17000000c', 'a')")
    with pytest.raises(NotADatabaseError, match="longer than any"), open_reader(path) as reader:
        reader.sessions()


def test_text_that_is_not_utf8_is_damage(tmp_path: Path) -> None:
    path = change(recording(tmp_path), "UPDATE raw_sessions SET node = cast(x'ff80' AS TEXT)")
    with pytest.raises(NotADatabaseError, match="UTF-8"), open_reader(path) as reader:
        reader.sessions()


@pytest.mark.parametrize("sql", ["ATTACH '{0}' AS other", "VACUUM INTO '{0}'", "CREATE TEMP TABLE t(a)", "BEGIN"])
def test_reader_opens_and_writes_no_other_file(tmp_path: Path, sql: str) -> None:
    opened = open_database(recording(tmp_path))
    with pytest.raises(apsw.AuthError):
        opened.db.execute(sql.format(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_older_database_with_tables_that_are_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    columns = "id, timestamp, pid, tid, source, op, duration"
    sql = f"CREATE TABLE events({columns}, more AS (printf('%.900000000c', 'A'))); CREATE TABLE sources(id, name)"
    apsw.Connection(str(path)).execute(sql)
    with pytest.raises(HostileDatabaseError, match="'events'"):
        open_database(path)


@pytest.mark.parametrize("suffix", ["-wal", "-journal", "-shm"])
def test_pipe_beside_a_database_keeps_nobody_waiting(tmp_path: Path, suffix: str) -> None:
    path = recording(tmp_path)
    os.mkfifo(f"{path}{suffix}")
    with pytest.raises(HostileDatabaseError, match="not a regular file"):
        open_database(path)
    refused_by_recorder(path, HostileDatabaseError)


def test_journal_that_names_another_file_deletes_nothing(tmp_path: Path) -> None:
    path, affected = recording(tmp_path), tmp_path / "affected"
    affected.write_text("kept")
    name = os.fsencode(affected)
    magic = bytes.fromhex("d9d505f920a163d7")
    head = magic + struct.pack(">IIIII", 0, 0, path.stat().st_size // 4096, 512, 4096)
    tail = struct.pack(">I", 0x40000000 // 4096 + 1) + name + struct.pack(">II", len(name), sum(name)) + magic
    Path(f"{path}-journal").write_bytes(head.ljust(512, b"\0") + tail)
    refused_by_recorder(path, HostileDatabaseError)
    assert affected.read_text() == "kept"


def test_statement_that_does_not_end_is_ended_and_the_next_one_runs() -> None:
    db = apsw.Connection(":memory:")
    distrust(db)
    StepLimit(db, 0, least_steps=2_000_000)
    with pytest.raises(apsw.InterruptError):
        list(db.execute(f"{ENDLESS} SELECT max(x) FROM c"))
    assert list(db.execute("SELECT 1")) == [(1,)]


def test_old_sqlite_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(OldSqliteError, match=r"3\.51\.2"):
        require_safe_sqlite()


def with_value(path: Path, table: str, column: str, value: str) -> Path:
    """A value that the table would refuse, behind its back."""
    db = apsw.Connection(str(path))
    (sql,) = next(iter(db.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,))))
    for text in (sql.replace("STRICT", "").replace("NOT NULL", ""), None, sql):
        if text is None:
            db.close()
            db = apsw.Connection(str(path))
            db.execute(f"UPDATE {table} SET {column} = {value}")
        else:
            db.execute("PRAGMA writable_schema = 1")
            db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (text, table))
    db.close()
    return path


def use_session(path: Path) -> None:
    with open_reader(path) as reader:
        (session,) = reader.sessions()
        assert (session.started_ns + 1, json.loads(session.options)) == (2, {})


@pytest.mark.parametrize(
    ("column", "value", "error"),
    [
        ("started_ns", "'x'", NotADatabaseError),
        ("started_ns", "NULL", NotADatabaseError),
        ("options", "'[[['", StrangeValuesError),
    ],
)
def test_values_that_cannot_be_used_are_a_sentence(
    tmp_path: Path, column: str, value: str, error: type[StoreError]
) -> None:
    path = with_value(recording(tmp_path), "raw_sessions", column, value)
    with pytest.raises(error) as caught:
        use_session(path)
    assert caught.value.hint
