"""The size limit: detail goes first, sums stay."""

from __future__ import annotations

from itertools import chain, count
from pathlib import Path

import apsw
import numpy as np
import pytest

from ingero.store.reader import open_reader
from ingero.store.records import Pruned, SessionFacts
from ingero.store.writing import migrations, retention, tables
from ingero.store.writing.retention import Retention, log_bytes, log_limit_bytes
from ingero.store.writing.tables import BY_NAME, Table
from ingero.store.writing.writer import Writer

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


def enforce(db: apsw.Connection, max_bytes: int) -> Retention:
    trimmed = Retention(db, Path(db.filename), max_bytes, clock=lambda: BEGIN_NS)
    while trimmed.step():
        pass
    return trimmed


def add_sync_intervals(db: apsw.Connection, count: int) -> None:
    sync_end_ns = BEGIN_NS + np.arange(count) * 10_000_000
    zero = dict.fromkeys(
        (
            "prev_sync_end_ns",
            "first_launch_ns",
            "sync_start_ns",
            "gpu_done_ns",
            "gpu_done_low_ns",
            "gpu_done_high_ns",
            "idle_ns",
            "busy_ns",
            "return_delay_ns",
        ),
        0,
    )
    insert(db, tables.SYNC_INTERVALS, count, session=1, process=1, pid=1, sync_end_ns=sync_end_ns, **zero)


SUMS = "SELECT process, sum(count), sum(recorded), sum(sum_ns), max(max_ns), sum(run_ns) FROM raw_op_stats GROUP BY 1"


def test_without_a_limit_nothing_goes(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_events(db, 10_000)
    assert enforce(db, 0).steps == 0
    assert db.execute("SELECT count(*) FROM events").fetchall() == [(10_000,)]


def test_oldest_events_go_first_and_sums_stay(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_op_stats(db, 60)
    add_events(db, 120_000)
    sums = db.execute(SUMS).fetchall()
    limit = retention.used_bytes(db) * 7 // 10
    enforce(db, limit)
    assert retention.used_bytes(db) <= 0.9 * limit
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
    assert newest_folded < oldest_kept <= newest_folded + 60 * SECOND_NS


def test_folding_leaves_no_column_out() -> None:
    kept = {"start_ns", "period_s"}
    for name, parts in retention._FOLDED.items():
        columns = {*kept, *chain.from_iterable(parts), *retention._LEVELS.get(name, ())}
        assert columns == set(BY_NAME[name].columns), name


def test_folding_keeps_how_many_calls_had_no_duration(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_op_stats(db, 3600)
    db.execute("UPDATE raw_op_stats SET untimed = 2")
    enforce(db, retention.used_bytes(db) // 2)
    assert db.execute("SELECT count(*) > 0 FROM raw_op_stats WHERE period_s = 60").fetchall() == [(1,)]
    assert db.execute("SELECT sum(count), sum(untimed) FROM raw_op_stats").fetchall() == [(3600 * 60, 3600 * 40)]


def test_folding_keeps_not_recorded_apart_from_zero(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_op_stats(db, 3600)
    enforce(db, retention.used_bytes(db) // 2)
    assert db.execute("SELECT DISTINCT throttled_ns FROM raw_op_stats").fetchall() == [(None,)]


def test_sync_intervals_go_with_the_events_of_their_time(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_op_stats(db, 60)
    add_events(db, 100_000)
    add_sync_intervals(db, 10_000)
    enforce(db, retention.used_bytes(db) * 7 // 10)
    ((events, sync_intervals, sums),) = db.execute(
        "SELECT (SELECT count(*) FROM raw_events), (SELECT count(*) FROM raw_sync_intervals), "
        "(SELECT count(*) FROM raw_op_stats)"
    )
    assert 0 < events < 100_000
    assert 0 < sync_intervals < 10_000
    assert sums == 60 * 20


def test_samples_go_with_the_events_of_their_time(tmp_path: Path) -> None:
    db = database(tmp_path / "i.db")
    add_events(db, 100_000)
    times = BEGIN_NS + np.arange(100_000) * 1_000_000
    insert(
        db, tables.SAMPLES, 100_000, session=1, time_ns=times, process=1, pid=1, tid=1, state=1, weight_ns=20_000_000
    )
    enforce(db, retention.used_bytes(db) // 2)
    oldest = [
        next(iter(db.execute(f"SELECT min({c}) FROM {t}")))[0]
        for t, c in (("raw_events", "start_ns"), ("raw_stack_samples", "time_ns"))
    ]
    assert all(isinstance(at, int) and at > BEGIN_NS for at in oldest), oldest


def test_old_seconds_fold_before_the_events_of_the_last_minutes_go(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_op_stats(db, 3600)
    start = BEGIN_NS + 3590 * SECOND_NS + np.arange(5_000) * 1_000_000
    insert(db, tables.EVENTS, 5_000, session=1, start_ns=start, pid=1, tid=1, source=1, op=3)
    enforce(db, retention.used_bytes(db) // 2)
    assert db.execute("SELECT count(*) FROM raw_events").fetchall() == [(5_000,)]
    assert db.execute("SELECT count(*) > 0 FROM raw_op_stats WHERE period_s = 60").fetchall() == [(1,)]


def test_a_step_holds_no_more_rows_than_fit_into_its_time(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_events(db, 80_000)
    fast_then_slow = chain(range(8), count(100, 100))
    slow = Retention(db, tmp_path / "a.db", retention.used_bytes(db) // 2, timer=lambda: next(fast_then_slow) * 1e-3)
    sizes: list[int] = []
    for _ in range(6):
        ((before,),) = db.execute("SELECT count(*) FROM raw_events")
        slow.step()
        ((after,),) = db.execute("SELECT count(*) FROM raw_events")
        sizes.append(before - after)
    assert sizes[:5] == sorted(sizes[:5])
    assert sizes[4] > sizes[5] >= retention.MIN_STEP_ROWS


def test_what_was_removed_is_told_to_readers(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    db = database(path)
    add_op_stats(db, 60)
    add_events(db, 60_000)
    limit = retention.used_bytes(db) * 7 // 10
    enforce(db, limit)
    ((left, oldest),) = db.execute("SELECT count(*), min(start_ns) FROM raw_events")
    db.close()
    with open_reader(path) as reader:
        (removed,) = reader.pruned()
    assert removed == Pruned(
        name="events",
        kind="removed",
        until_ns=oldest - 1_000_000,
        rows=60_000 - left,
        noted_ns=BEGIN_NS,
        max_db_bytes=limit,
    )


def test_a_file_larger_than_its_limit_gives_space_back(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    limit = 2_000_000
    facts = SessionFacts(uuid="u", started_ns=BEGIN_NS)
    with Writer(path, session=facts, node="n") as writer:
        start = BEGIN_NS + np.arange(60_000) * 1_000_000
        writer.append(
            tables.EVENTS, tables.EVENTS.rows(60_000, session=1, start_ns=start, pid=1, tid=1, source=1, op=3)
        )
    assert path.stat().st_size > 2 * limit
    with Writer(path, session=facts, node="n", max_db_bytes=limit) as writer:
        writer.flush()
    assert path.stat().st_size <= limit


def test_a_log_that_readers_let_grow_begins_anew_between_two_of_their_statements(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    db = database(path)
    limit = 16 << 20
    for setting in ("journal_mode = wal", "wal_autocheckpoint = 64", f"journal_size_limit = {log_limit_bytes(limit)}"):
        list(db.execute(f"PRAGMA {setting}"))
    kept = Retention(db, path, limit, clock=lambda: BEGIN_NS)
    reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    add_events(db, 1)
    reading = reader.execute("SELECT id FROM raw_events UNION ALL SELECT id FROM raw_events")
    next(reading)
    while log_bytes(path) <= 2 * log_limit_bytes(limit):
        add_events(db, 1_000)
    kept.limit_log()
    add_events(db, 1)
    assert log_bytes(path) > 2 * log_limit_bytes(limit), "it is being read"
    reading.close()
    kept.limit_log()
    reading = reader.execute("SELECT id FROM raw_events UNION ALL SELECT id FROM raw_events")
    next(reading)  # of the file: the log is empty
    add_events(db, 1)
    assert log_bytes(path) <= log_limit_bytes(limit)


def test_ended_processes_go_last(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_op_stats(db, 60)
    insert(
        db,
        tables.PROCESSES,
        3_000,
        process=np.arange(1, 3001),
        session=1,
        pid=np.arange(1, 3001),
        start_ns=0,
        cmdline="python train.py" * 20,
        exit_ns=[BEGIN_NS - 1] * 2999 + [None],
    )
    enforce(db, 50_000)
    assert db.execute("SELECT process FROM raw_processes").fetchall() == [(3000,)]
    assert db.execute("SELECT count(*) FROM raw_op_stats").fetchall() == [(0,)]


def test_stacks_go_with_the_last_detail_of_their_process(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    minute_ns = 60 * SECOND_NS
    insert(
        db,
        tables.PROCESSES,
        3,
        process=[1, 2, 3],
        session=1,
        pid=[1, 2, 3],
        start_ns=0,
        exit_ns=[BEGIN_NS + minute_ns, BEGIN_NS + 40 * minute_ns, None],
    )
    for process in (1, 2, 3):
        hashes = process * 10_000 + np.arange(3_000)
        insert(db, tables.STACKS, 3_000, hash=hashes, frames="forward at train.py:142" * 10, process=process)
    start = BEGIN_NS + np.arange(41) * minute_ns
    insert(db, tables.EVENTS, 41, session=1, start_ns=start, duration_ns=5, pid=1, tid=1, source=1, op=3)
    insert(db, tables.OP_STATS, 1, session=1, start_ns=start[-1], process=3, source=1, op=3, count=1, sum_ns=1)
    enforce(db, retention.used_bytes(db))
    left = dict(db.execute("SELECT process, count(*) FROM raw_stacks GROUP BY 1").fetchall())
    assert left.get(1, 0) < 3_000
    assert (left[2], left[3]) == (3_000, 3_000)
    ((oldest,),) = db.execute("SELECT min(start_ns) FROM raw_events")
    assert oldest > BEGIN_NS + minute_ns, "what leads to them went before"


def test_drops_fold_into_minutes_and_none_is_lost(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    seconds = np.arange(7_200)
    newest_ns = BEGIN_NS + 7_200 * SECOND_NS
    insert(db, tables.OP_STATS, 1, session=1, start_ns=newest_ns, process=1, source=1, op=3, count=1, sum_ns=1)
    start = BEGIN_NS + seconds * SECOND_NS
    insert(db, tables.DROPS, 7_200, session=1, start_ns=start, counter="frame_stale", count=2)
    enforce(db, retention.used_bytes(db) // 2)
    ((rows, lost),) = db.execute("SELECT count(*), sum(count) FROM raw_drops")
    assert lost == 14_400
    assert rows < 1_000


def test_processes_of_ended_recordings_go_though_their_end_was_not_seen(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    insert(db, tables.SESSIONS, 1, session=1, uuid="u", node="n", started_ns=0, last_seen_ns=1, stopped_ns=1)
    number = np.arange(1, 3_001)
    insert(db, tables.PROCESSES, 3_000, process=number, session=1, pid=number, start_ns=0, cmdline="python " * 20)
    enforce(db, 50_000)
    assert db.execute("SELECT count(*) FROM raw_processes").fetchall() == [(0,)]


def test_incidents_outlive_everything_else(tmp_path: Path) -> None:
    db = database(tmp_path / "a.db")
    add_op_stats(db, 600)
    add_events(db, 20_000)
    insert(db, tables.INCIDENTS, 1, incident=1, session=1, cause="cpu-contention", severity="HIGH", start_ns=BEGIN_NS)
    enforce(db, 1)
    assert db.execute("SELECT count(*) FROM events").fetchall() == [(0,)]
    assert db.execute("SELECT cause FROM incidents").fetchall() == [("cpu-contention",)]


def test_there_is_room_for_a_log_that_is_larger_than_any_before(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    db = apsw.Connection(str(path))
    list(db.execute("PRAGMA auto_vacuum = incremental"))
    migrations.migrate(db, path)
    add_events(db, 20_000)
    db.execute("DELETE FROM raw_events")
    file_bytes = retention.pragma(db, "page_count") * retention.pragma(db, "page_size")
    limit = int(file_bytes / (1 - 1.25 / 16))  # between the log's own limit and half as much again
    assert file_bytes + log_limit_bytes(limit) < limit < file_bytes + 1.5 * log_limit_bytes(limit)
    kept = Retention(db, path, limit, clock=lambda: BEGIN_NS)
    while kept.step():
        pass
    file_bytes = retention.pragma(db, "page_count") * retention.pragma(db, "page_size")
    assert file_bytes + 1.5 * log_limit_bytes(limit) <= limit


@pytest.mark.parametrize("parts", [60])
def test_recorder_keeps_its_file_near_the_limit(tmp_path: Path, parts: int) -> None:
    path = tmp_path / "a.db"
    limit = 20_000_000
    facts = SessionFacts(uuid="u", started_ns=BEGIN_NS)
    with Writer(path, session=facts, node="n", max_db_bytes=limit) as writer:
        for part in range(parts):
            start = BEGIN_NS + (part * 5_000 + np.arange(5_000)) * 1_000_000
            rows = tables.EVENTS.rows(5_000, session=1, start_ns=start, duration_ns=5, pid=1, tid=1, source=1, op=3)
            writer.append(tables.EVENTS, rows)
            writer.flush()
        assert writer.drops() == {}
        assert path.stat().st_size + retention.log_bytes(path) <= limit
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    ((count, newest),) = db.execute("SELECT count(*), max(timestamp) FROM events")
    assert newest == BEGIN_NS + (parts * 5_000 - 1) * 1_000_000
    assert count < parts * 5_000
