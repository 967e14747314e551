"""Recordings of builds before names became those of the field: read and merged as today's, and never continued."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from ingero.store import views
from ingero.store.errors import HostileDatabaseError, OtherBuildError
from ingero.store.merge import merge
from ingero.store.older import earlier_names
from ingero.store.opening.opening import open_database
from ingero.store.opening.own_schema import own_columns
from ingero.store.reader import open_reader
from ingero.store.records import SessionFacts
from ingero.store.writing.writer import Writer
from tests.unit.reader_recording import fill

STARTED_NS = 1_790_000_000 // 60 * 60 * 1_000_000_000
EARLIER = ("hidden-synchronisation", '{"late.runq":3,"empty.kernel_lock":2,"device.device":1}')
TODAY = ("unexpected-sync", '{"return_delay.runq":3,"idle.uninterruptible":2,"gpu.gpu_execution":1}')


@pytest.fixture
def today(tmp_path: Path) -> Path:
    path = tmp_path / "today.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=STARTED_NS), node="n", clock=lambda: STARTED_NS) as to:
        fill(to)
    with_incident(path, *TODAY, column="breakdown")
    return path


@pytest.fixture
def earlier(today: Path, tmp_path: Path) -> Path:
    """The same under the names that it would have had."""
    path = tmp_path / "earlier.db"
    shutil.copy(today, path)
    db = apsw.Connection(str(path))
    for (name,) in list(db.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")):
        db.execute(f"DROP VIEW {name}")
    db.execute("UPDATE raw_incidents SET cause = ?, breakdown = ?", EARLIER)
    db.execute("ALTER TABLE raw_incidents RENAME breakdown TO account")
    db.execute("ALTER TABLE raw_overhead_levels RENAME level TO rung")
    db.execute("ALTER TABLE raw_overhead_levels RENAME agent_level TO level")
    for table, columns in own_columns().items():
        for column in columns.keys() & earlier_names.COLUMNS.keys():
            if table != "raw_steps" or column != "step_type":  # which it has always been there
                db.execute(f"ALTER TABLE {table} RENAME {column} TO {earlier_names.COLUMNS[column]}")
        if table in earlier_names.TABLES:
            db.execute(f"ALTER TABLE {table} RENAME TO {earlier_names.TABLES[table]}")
    db.execute("ALTER TABLE raw_stacks DROP COLUMN is_python_whole; PRAGMA user_version = 1")
    db.close()
    return path


def with_incident(path: Path, cause: str, breakdown: str, *, column: str) -> None:
    db = apsw.Connection(str(path))
    db.execute(
        f"INSERT INTO raw_incidents(session, cause, severity, start_ns, {column}) VALUES (1, ?, 'HIGH', ?, ?)",
        (cause, STARTED_NS, breakdown),
    )
    db.close()


def rows_of(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with open_reader(path) as reader:
        return {name: sorted(reader.connection.execute(f"SELECT * FROM {name}"), key=repr) for name in views.TABLES}


def test_every_view_has_the_rows_of_the_same_recording_under_todays_names(today: Path, earlier: Path) -> None:
    found, expected = rows_of(earlier), rows_of(today)
    assert [name for name in expected if found[name] != expected[name]] == []
    assert all(expected[name] for name in ("sync_intervals", "thread_state_seconds", "drops", "incidents"))


def test_such_a_recording_can_be_merged(today: Path, earlier: Path, tmp_path: Path) -> None:
    outputs = tmp_path / "a.db", tmp_path / "b.db"
    for source, output in zip((today, earlier), outputs, strict=True):
        merge([source], output)
    one, other = map(rows_of, outputs)
    for found in (one, other):
        found.pop("sessions")  # the options say from which file
    assert one == other


def test_nothing_is_recorded_into_it(earlier: Path) -> None:
    before = earlier.read_bytes()
    with (
        pytest.raises(OtherBuildError),
        Writer(earlier, session=SessionFacts(uuid="v", started_ns=STARTED_NS), node="n"),
    ):
        pass
    assert earlier.read_bytes() == before


def test_what_stands_under_an_earlier_name_has_to_be_a_table(earlier: Path) -> None:
    db = apsw.Connection(str(earlier))
    db.execute("DROP TABLE raw_epochs; CREATE VIEW raw_epochs AS SELECT 1 AS a_ns")
    db.close()
    with pytest.raises(HostileDatabaseError):
        open_database(earlier)


def test_the_name_of_a_column_is_never_a_part_of_sql(earlier: Path) -> None:
    db = apsw.Connection(str(earlier))
    db.execute('ALTER TABLE raw_epochs ADD COLUMN "x FROM raw_strings; DROP TABLE raw_strings --" INTEGER')
    db.execute('ALTER TABLE raw_events ADD COLUMN "1 AS pid, *" INTEGER')
    db.close()
    assert rows_of(earlier)["sync_intervals"]
