"""Versions of a database."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from ingero.store.errors import ForeignDatabaseError, NewerDatabaseError, OlderIngeroError, OtherBuildError
from ingero.store.opening.opening import open_database
from ingero.store.records import SessionFacts
from ingero.store.writing import migrations
from ingero.store.writing.writer import Writer

PUBLISHED = (
    "events",
    "cuda_events",
    "nccl_events",
    "containers",
    "tenants",
    "gpus",
    "process_gpus",
    "op_stats",
    "kernel_launches",
    "offcpu",
    "sync_intervals",
    "incidents",
    "causal_chains",
    "sources",
    "ops",
    "stack_traces",
    "system_snapshots",
    "sessions",
    "process_names",
)


def database(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    migrations.migrate(db, path)
    return db


def test_new_database_has_the_newest_version_and_every_published_view(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    assert migrations.pragma(db, "user_version") == 1 + len(migrations.MIGRATIONS)
    for name in PUBLISHED:
        db.execute(f"SELECT * FROM {name}").fetchall()


def test_each_migration_runs_once_and_in_order(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    ran: list[int] = []
    newest = migrations.NEWEST_VERSION
    steps = [*migrations.MIGRATIONS, *(lambda _, n=n: ran.append(n) for n in (1, 2))]
    migrations.migrate(db, tmp_path, migrations=steps[:-1])
    migrations.migrate(db, tmp_path, migrations=steps)
    migrations.migrate(db, tmp_path, migrations=steps)
    assert ran == [1, 2]
    assert migrations.pragma(db, "user_version") == newest + 2


def test_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")

    def change_and_fail(db: apsw.Connection) -> None:
        db.execute("DROP TABLE raw_stacks")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        migrations.migrate(db, tmp_path, migrations=[*migrations.MIGRATIONS, change_and_fail])
    assert migrations.pragma(db, "user_version") == migrations.NEWEST_VERSION
    assert db.execute("SELECT count(*) FROM stack_traces").fetchall() == [(0,)]


def test_views_and_vocabulary_are_made_anew(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    db.execute("DROP VIEW events; CREATE VIEW stale AS SELECT 1; DELETE FROM ops")
    migrations.migrate(db, tmp_path)
    assert db.execute("SELECT count(*) FROM events").fetchall() == [(0,)]
    assert db.execute("SELECT name FROM sqlite_schema WHERE name = 'stale'").fetchall() == []
    assert db.execute("SELECT name FROM ops WHERE source_id = 1 AND op_id = 1").fetchall() == [("cudaMalloc",)]


def test_newer_version_is_refused_by_recorder_and_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    db = database(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(NewerDatabaseError, match="99") as caught:
        open_database(path)
    assert "upgrade" in caught.value.hint
    before = path.read_bytes()
    writer = Writer(path, session=SessionFacts(uuid="u", started_ns=1), node="n")
    with pytest.raises(NewerDatabaseError), writer:
        pass
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ("CREATE TABLE customers(id, name)", ForeignDatabaseError),
        (
            "CREATE TABLE events(id, timestamp, pid, tid, source, op, duration); CREATE TABLE sources(id, name)",
            OlderIngeroError,
        ),
    ],
)
def test_recorder_never_writes_what_is_not_its_own(tmp_path: Path, schema: str, error: type[Exception]) -> None:
    path = tmp_path / "a.db"
    db = apsw.Connection(str(path))
    db.execute(schema)
    db.close()
    before = path.read_bytes()
    with pytest.raises(error), Writer(path, session=SessionFacts(uuid="u", started_ns=1), node="n"):
        pass
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ("ALTER TABLE raw_drops DROP COLUMN period_s", "raw_drops.period_s"),
        ("DROP TABLE raw_kernels", "raw_kernels"),
        (
            "ALTER TABLE raw_drops DROP COLUMN period_s; "
            "ALTER TABLE raw_drops ADD COLUMN period_s INTEGER NOT NULL DEFAULT 1",
            "raw_drops of this build",
        ),
    ],
)
def test_a_file_whose_tables_are_others_is_not_recorded_into(tmp_path: Path, change: str, missing: str) -> None:
    path = tmp_path / "a.db"
    db = database(path)
    for (view,) in list(db.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")):
        db.execute(f'DROP VIEW "{view}"')
    db.execute(change)
    db.close()
    before = path.read_bytes()
    with (
        pytest.raises(OtherBuildError, match=f"no {missing}"),
        Writer(path, session=SessionFacts(uuid="u", started_ns=1), node="n"),
    ):
        raise AssertionError
    assert path.read_bytes() == before
