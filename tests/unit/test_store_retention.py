"""The size limit: detail goes first, sums stay."""

from __future__ import annotations

from pathlib import Path

import apsw
import numpy as np
import pytest

from ingero.store import migrations, retention, tables
from ingero.store.records import SessionFacts
from ingero.store.tables import Table
from ingero.store.writer import Writer

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_790_000_000 // 60 * 60 * SECOND_NS


def database(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    migrations.migrate(db, path)
    return db


def insert(db: apsw.Connection, table: Table, rows: int, /, **columns: tables.Column) -> None:
    with db:
        db.executemany(table.insert_sql(), table.rows(rows, **columns))


def add_events(db: apsw.Connection, count: int) -> None:
    start = BEGIN_NS + np.arange(count) * 1_000_000
    insert(db, tables.EVENTS, count, session=1, start_ns=start, duration_ns=5, pid=1, tid=1, source=1, op=3)


def add_op_stats(db: apsw.Connection, seconds: int) -> None:
    start = np.repeat(BEGIN_NS + np.arange(seconds) * SECOND_NS, 20)
    insert(
        db,
        tables.OP_STATS,
        seconds * 20,
        session=1,
        start_ns=start,
        process=np.tile(np.arange(20), seconds),
        source=1,
        op=3,
        count=3,
        recorded=2,
        sum_ns=700,
        max_ns=np.arange(seconds * 20),
        run_ns=600,
        runq_ns=100,
    )


def enforce(db: apsw.Connection, max_bytes: int) -> int:
    trimmer, steps = retention.Trimmer(db, max_bytes, SlowClock(0)), 0
    while trimmer.step():
        steps += 1
    return steps


SUMS = "SELECT process, sum(count), sum(recorded), sum(sum_ns), max(max_ns), sum(run_ns) FROM raw_op_stats GROUP BY 1"


def test_without_a_limit_nothing_goes(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_events(db, 10_000)
    assert enforce(db, 0) == 0
    assert db.execute("SELECT count(*) FROM events").fetchall() == [(10_000,)]


def test_oldest_events_go_first_and_sums_stay(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_op_stats(db, 60)
    add_events(db, 120_000)
    sums = db.execute(SUMS).fetchall()
    limit = retention.used_bytes(db) * 7 // 10
    enforce(db, limit)
    assert retention.used_bytes(db) <= limit * retention.TARGET_RATIO
    ((count, oldest, newest),) = db.execute("SELECT count(*), min(timestamp), max(timestamp) FROM events")
    assert newest == BEGIN_NS + 119_999 * 1_000_000
    assert count == (newest - oldest) // 1_000_000 + 1  # no hole
    assert 0 < count < 120_000
    assert db.execute(SUMS).fetchall() == sums


def test_seconds_fold_into_minutes_with_every_sum_unchanged(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_op_stats(db, 3600)
    sums = db.execute(SUMS).fetchall()
    enforce(db, retention.used_bytes(db) // 2)
    assert db.execute(SUMS).fetchall() == sums
    folded = db.execute("SELECT DISTINCT start_ns % 60000000000 FROM raw_op_stats WHERE period_s = 60").fetchall()
    assert folded == [(0,)]
    ((newest_folded, oldest_kept),) = db.execute(
        "SELECT max(iif(period_s = 60, start_ns, NULL)), min(iif(period_s = 1, start_ns, NULL)) FROM raw_op_stats"
    )
    assert oldest_kept == newest_folded + 60 * SECOND_NS


def test_folding_keeps_not_recorded_apart_from_zero(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_op_stats(db, 3600)
    enforce(db, retention.used_bytes(db) // 2)
    assert db.execute("SELECT DISTINCT throttled_ns FROM raw_op_stats").fetchall() == [(None,)]


def test_incidents_outlive_everything_else(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_op_stats(db, 600)
    add_events(db, 20_000)
    insert(db, tables.INCIDENTS, 1, incident=1, session=1, cause="cpu-contention", severity="HIGH", start_ns=BEGIN_NS)
    enforce(db, 1)
    assert db.execute("SELECT count(*) FROM events").fetchall() == [(0,)]
    assert db.execute("SELECT cause FROM incidents").fetchall() == [("cpu-contention",)]


@pytest.mark.parametrize("parts", [60])
def test_recorder_keeps_its_file_near_the_limit(tmp_path: Path, parts: int) -> None:
    path = tmp_path / "a.db"
    limit = 8_000_000
    facts = SessionFacts(uuid="u", started_ns=BEGIN_NS)
    with Writer(path, session=facts, node="n", max_db_bytes=limit) as writer:
        for part in range(parts):
            start = BEGIN_NS + (part * 5_000 + np.arange(5_000)) * 1_000_000
            rows = tables.EVENTS.rows(5_000, session=1, start_ns=start, duration_ns=5, pid=1, tid=1, source=1, op=3)
            writer.append(tables.EVENTS, rows)
            writer.flush()
        assert writer.losses() == {}
        assert path.stat().st_size < 1.5 * limit
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    ((count, newest),) = db.execute("SELECT count(*), max(timestamp) FROM events")
    assert newest == BEGIN_NS + (parts * 5_000 - 1) * 1_000_000
    assert count < parts * 5_000


class SlowClock:
    """Says of every step that it has taken so long."""

    def __init__(self, step_ns: int) -> None:
        self._step_ns, self._now_ns = step_ns, 0

    def __call__(self) -> int:
        self._now_ns += self._step_ns
        return self._now_ns


def trimmed(tmp_path: Path, step_ns: int) -> tuple[apsw.Connection, retention.Trimmer]:
    db = database(tmp_path / "a.db")
    add_events(db, 30_000)
    return db, retention.Trimmer(db, retention.used_bytes(db) // 2, SlowClock(step_ns))


def test_steps_shrink_while_they_take_too_long(tmp_path: Path) -> None:
    db, trimmer = trimmed(tmp_path, 100_000_000)
    deleted = []
    for _ in range(6):
        before = db.total_changes()
        trimmer.step()
        deleted.append(db.total_changes() - before)
    assert deleted == [2_000, 1_000, 500, 250, 125, 100]


def test_steps_grow_while_they_are_quick(tmp_path: Path) -> None:
    db, trimmer = trimmed(tmp_path, 1_000_000)
    before = db.total_changes()
    trimmer.step()
    trimmer.step()
    assert db.total_changes() - before == 2_000 + 4_000


def test_a_full_minute_is_folded_part_by_part_with_every_sum_unchanged(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_op_stats(db, 60)
    sums = db.execute(SUMS).fetchall()
    steps = 0
    trimmer = retention.Trimmer(db, 1)
    while trimmer.fold_seconds(BEGIN_NS + 60 * SECOND_NS, 500):
        steps += 1
    assert steps == 60 * 20 // 500 + 1
    assert db.execute("SELECT DISTINCT period_s FROM raw_op_stats").fetchall() == [(60,)]
    assert db.execute(SUMS).fetchall() == sums
