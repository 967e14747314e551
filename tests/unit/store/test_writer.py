"""The recorder's end: what is queued gets stored, what is not is counted, and nobody else writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import numpy as np
import pytest

from ingero.store.errors import DamagedError, ForeignLockError, NotWritableError, RecorderRunningError, StoreError
from ingero.store.reader import open_reader
from ingero.store.records import SessionFacts
from ingero.store.writing import migrations, recording, tables
from ingero.store.writing.writer import Writer

SECOND_NS = 1_000_000_000
NOW_NS = 1_790_000_000 * SECOND_NS


def facts(**changes: str) -> SessionFacts:
    return SessionFacts(uuid="u-1", started_ns=NOW_NS, **changes)  # type: ignore[arg-type]  # only text fields


def make_writer(
    path: Path,
    *,
    session: SessionFacts | None = None,
    queue_rows: int = 100_000,
    clock: Callable[[], int] | None = None,
) -> Writer:
    return Writer(
        path, session=session or facts(), node="n1", queue_rows=queue_rows, clock=clock or (lambda: NOW_NS + SECOND_NS)
    )


def events(writer: Writer, count: int, *, first: int = 0) -> list[tables.Row]:
    return tables.EVENTS.rows(
        count,
        session=writer.session,
        start_ns=NOW_NS + np.arange(first, first + count),
        duration_ns=np.arange(first, first + count),
        pid=10,
        tid=11,
        source=1,
        op=3,
        comm=writer.intern("python3"),
    )


def rows_of(path: Path, sql: str) -> list[tuple[apsw.SQLiteValue, ...]]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return list(db.execute(sql))
    finally:
        db.close()


def stop_growing(db: apsw.Connection) -> None:
    """Make SQLite answer as it does on a full disk."""
    list(db.execute(f"PRAGMA max_page_count = {migrations.pragma(db, 'page_count')}"))


def test_stored_rows_come_back_through_the_published_view(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path) as writer:
        writer.append(tables.EVENTS, events(writer, 1000))
    found = rows_of(path, "SELECT id, timestamp, duration_ns, pid, tid, op_name, comm FROM events ORDER BY timestamp")
    assert len(found) == 1000
    assert found[999] == ("n1:1000", NOW_NS + 999, 999, 10, 11, "cudaLaunchKernel", "python3")


def test_flush_waits_until_a_reader_sees_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path) as writer:
        for part in range(5):
            writer.append(tables.EVENTS, events(writer, 100, first=100 * part))
            writer.flush()
            assert rows_of(path, "SELECT count(*) FROM events") == [(100 * (part + 1),)]


def test_rows_past_the_queue_are_counted_and_the_count_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path, queue_rows=100) as writer:
        taken = writer.append(tables.EVENTS, events(writer, 250))
        assert taken == 100
        assert writer.drops() == {("raw_events", "queue full"): 150}
    with open_reader(path) as reader:
        assert [(drop.counter, drop.reason, drop.count) for drop in reader.drops()] == [
            ("store_rows_lost", "raw_events: queue full", 150)
        ]
    assert rows_of(path, "SELECT count(*) FROM events") == [(100,)]


def test_sums_are_stored_when_events_fill_the_queue(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path, queue_rows=100) as writer:
        sums = tables.OP_STATS.rows(
            5, session=writer.session, start_ns=NOW_NS, process=1, source=1, op=3, count=7, sum_ns=70
        )
        writer.append(tables.EVENTS, events(writer, 250))
        assert writer.append(tables.OP_STATS, sums) == 5
    assert rows_of(path, "SELECT sum(count) FROM op_stats") == [(35,)]


def test_stored_and_lost_rows_add_up_to_those_appended_by_several_threads(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path, queue_rows=2_000) as writer:
        rows = events(writer, 500)

        def produce() -> None:
            for _ in range(60):
                writer.append(tables.EVENTS, rows)

        threads = [threading.Thread(target=produce) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lost = writer.drops().get(("raw_events", "queue full"), 0)
    ((stored,),) = rows_of(path, "SELECT count(*) FROM raw_events")
    assert stored + lost == 60 * 4 * 500  # type: ignore[operator]  # count(*) is a number


def test_rows_the_schema_refuses_are_counted_and_the_others_stored(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path) as writer:
        writer.append(tables.CLOCK_PAIRS, [(writer.session, "no number", 0, None)])
        writer.append(tables.THREADS, [(1, 2)])
        writer.append(tables.EVENTS, events(writer, 10))
        writer.flush()
        drops = writer.drops()
        assert {table: count for (table, _), count in drops.items()} == {"raw_clock_pairs": 1, "raw_threads": 1}
        assert all(reason.startswith("refused: ") for _, reason in drops)
        assert writer.error is None
    assert rows_of(path, "SELECT count(*) FROM events") == [(10,)]


KILLED = """
import itertools, sys
from pathlib import Path
from ingero.store.writing import tables
from ingero.store.records import SessionFacts
from ingero.store.writing.writer import Writer
with Writer(Path(sys.argv[1]), session=SessionFacts(uuid="u", started_ns=1), node="n1") as writer:
    for count in itertools.count(1):
        writer.append(tables.CLOCK_PAIRS, [(writer.session, count, 0, None)])
        if count % 1000 == 0:
            writer.flush()
            print(count, flush=True)
"""


def test_killed_recorder_leaves_a_whole_database_with_everything_committed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        committed = [int(child.stdout.readline()) for _ in range(20)][-1]
        child.kill()
        assert child.wait() == -signal.SIGKILL
    with open_reader(path) as reader:
        ((count, highest),) = reader.connection.execute("SELECT count(*), max(mono_ns) FROM raw_clock_pairs")
        assert reader.connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert reader.sessions()[0].stopped_ns is None
    assert count >= committed
    assert count == highest  # no hole before what is missing


def test_rows_are_committed_without_anybody_asking(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path) as writer:
        writer.append(tables.EVENTS, events(writer, 1))
        waiting = threading.Event()
        while rows_of(path, "SELECT count(*) FROM raw_events") == [(0,)]:
            waiting.wait(0.01)


def test_next_recorder_ends_the_session_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path, clock=lambda: NOW_NS + 7):
        pass
    db = apsw.Connection(str(path))
    db.execute("UPDATE raw_sessions SET stopped_ns = NULL, stop_reason = ''")
    db.close()
    with make_writer(path) as writer:
        assert writer.session == 2
    with open_reader(path) as reader:
        assert [(s.stopped_ns, s.stop_reason) for s in reader.sessions()] == [
            (NOW_NS + 7, "killed"),
            (NOW_NS + SECOND_NS, "stopped"),
        ]


def test_second_recorder_is_refused_and_told_who_has_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path):
        with pytest.raises(RecorderRunningError, match=f"pid {os.getpid()}") as caught, make_writer(path):
            pass
        assert "--db" in caught.value.hint
        assert rows_of(path, "SELECT count(*) FROM sessions") == [(1,)]
    with make_writer(path) as writer:
        assert writer.session == 2


@pytest.mark.parametrize("content", [b"12345\n", b"INGERO", b"ingero is a word in my notes\n", bytes(3)])
def test_a_file_of_somebody_else_beside_the_database_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    theirs = tmp_path / "a.db.lock"
    theirs.write_bytes(content)
    with pytest.raises(ForeignLockError, match=str(theirs)) as caught, make_writer(tmp_path / "a.db"):
        pass
    assert f"mv {theirs}" in caught.value.hint
    assert theirs.read_bytes() == content
    assert not (tmp_path / "a.db").exists()


def test_a_named_pipe_beside_the_database_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.db.lock")
    with pytest.raises(ForeignLockError), make_writer(tmp_path / "a.db"):
        pass


def test_the_lock_of_a_killed_recorder_is_taken_over(tmp_path: Path) -> None:
    with make_writer(tmp_path / "a.db"):
        left = (tmp_path / "a.db.lock").read_bytes()
    for written in (left, left[:3], b""):  # killed while it wrote, too
        (tmp_path / "a.db.lock").write_bytes(written)
        with make_writer(tmp_path / "a.db"):
            assert (tmp_path / "a.db.lock").read_bytes() == left


def test_nothing_but_the_database_is_left_after_closing(tmp_path: Path) -> None:
    with make_writer(tmp_path / "a.db") as writer:
        writer.append(tables.EVENTS, events(writer, 10))
        writer.flush()
        assert {"a.db", "a.db-wal", "a.db-shm", "a.db.lock"} == {file.name for file in tmp_path.iterdir()}
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


def test_full_disk_is_an_error_to_see_and_rows_wait_for_room(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path, queue_rows=30_000) as writer:
        db = writer._recording.db
        writer.flush()
        stop_growing(db)
        writer.append(tables.EVENTS, events(writer, 20_000))
        with pytest.raises(NotWritableError, match="disk is full") as caught:
            writer.flush()
        assert caught.value.hint
        assert writer.error is not None
        writer.append(tables.EVENTS, events(writer, 20_000, first=20_000))
        assert writer.drops() == {("raw_events", "write failed"): 10_000}
        list(db.execute("PRAGMA max_page_count = 1000000"))
        writer.flush()
        assert writer.error is None
    assert rows_of(path, "SELECT count(*) FROM events") == [(30_000,)]


def test_rows_that_never_found_room_are_counted_at_the_end(tmp_path: Path) -> None:
    with make_writer(tmp_path / "a.db") as writer:
        db = writer._recording.db
        writer.flush()
        stop_growing(db)
        writer.append(tables.EVENTS, events(writer, 20_000))
    assert writer.drops() == {("raw_events", "write failed"): 20_000, ("raw_strings", "write failed"): 1}
    assert isinstance(writer.error, NotWritableError)


def test_lock_of_another_program_delays_the_rows_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "BUSY_MS", 10)
    path = tmp_path / "a.db"
    with make_writer(path) as writer:
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        writer.append(tables.EVENTS, events(writer, 100))
        with pytest.raises(NotWritableError, match="another program"):
            writer.flush()
        other.execute("ROLLBACK")
        other.close()
        writer.flush()
        assert writer.drops() == {}
    assert rows_of(path, "SELECT count(*) FROM events") == [(100,)]


def test_flush_after_closing_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    with make_writer(tmp_path / "a.db") as writer:
        pass
    with pytest.raises(StoreError, match="closed"):
        writer.flush()


def test_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to have a header " * 20)
    before = path.read_bytes()
    with pytest.raises(DamagedError), make_writer(path):
        pass
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_pipe_is_refused_and_nothing_left_beside_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.db")
    with pytest.raises(NotWritableError, match="not a regular file"), make_writer(tmp_path / "a.db"):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


def test_folder_that_cannot_be_made_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritableError) as caught, make_writer(tmp_path / "file" / "a.db"):
        pass
    assert "--db" in caught.value.hint


@pytest.mark.skipif(os.getuid() != 0, reason="only root can hand files over")
def test_files_and_new_folders_belong_to_the_owner_while_recording(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.db"
    with Writer(path, session=facts(), node="n1", owner=(12345, 23456)) as writer:
        writer.append(tables.EVENTS, events(writer, 10))
        writer.flush()
        files = [path.parent.parent, path.parent, *path.parent.iterdir()]
        assert {file.name for file in files} >= {"new", "folder", "a.db", "a.db-wal", "a.db-shm"}
        assert {(f.stat().st_uid, f.stat().st_gid) for f in files} == {(12345, 23456)}
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="only root can hand files over")
def test_a_file_that_was_named_by_mistake_keeps_its_owner(tmp_path: Path) -> None:
    named = tmp_path / "passwd"
    named.write_text("root:x:0:0\n")
    with pytest.raises(StoreError), Writer(named, session=facts(), node="n1", owner=(12345, 23456)):
        pass
    assert named.stat().st_uid == 0


def test_strings_keep_their_numbers_over_recordings(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path) as writer:
        first = [writer.intern(text) for text in ("libcudart.so.12", "", "fluent-bit", "libcudart.so.12")]
    with make_writer(path) as writer:
        again = [writer.intern(text) for text in ("new", "fluent-bit", "libcudart.so.12")]
    assert first == [1, 0, 2, 1]
    assert again == [3, 2, 1]
    assert rows_of(path, "SELECT * FROM raw_strings") == [(1, "libcudart.so.12"), (2, "fluent-bit"), (3, "new")]


def test_undecodable_names_are_stored_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path) as writer:
        writer.intern(b"caf\xe9".decode("utf-8", "surrogateescape"))
    assert rows_of(path, "SELECT text FROM raw_strings") == [("caf\\udce9",)]


def test_process_is_its_pid_and_start_time(tmp_path: Path) -> None:
    with make_writer(tmp_path / "a.db") as writer:
        numbers = [
            writer.process_id(10, 1),
            writer.process_id(10, 2),
            writer.process_id(11, 1),
            writer.process_id(10, 1),
        ]
        writer.append(
            tables.PROCESSES, tables.PROCESSES.rows(1, process=numbers[2], session=writer.session, pid=11, start_ns=1)
        )
    assert numbers == [1, 2, 3, 1]
    with make_writer(tmp_path / "a.db") as writer:
        assert writer.process_id(10, 1) == 4


def test_later_row_of_a_process_replaces_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path) as writer:
        for rank in (None, 3):
            row = tables.PROCESSES.rows(1, process=1, session=writer.session, pid=10, start_ns=5, rank=rank)
            writer.append(tables.PROCESSES, row)
    assert rows_of(path, "SELECT pid, rank FROM processes") == [(10, 3)]


def test_control_groups_of_two_boots_never_share_a_number(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    keys = []
    for boot in ("boot-a", "boot-b", "boot-a"):
        with make_writer(path, session=facts(boot_id=boot)) as writer:
            keys.append(writer.cgroup_keys(np.array([0, 77], dtype=np.uint64)).tolist())
    assert keys == [[0, 77], [0, 77 + (1 << 48)], [0, 77]]


def test_secondary_indexes_exist_only_while_nobody_records(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    sql = "SELECT count(*) FROM sqlite_schema WHERE name IN ('raw_events_op', 'raw_events_process')"
    for _ in range(2):
        with make_writer(path) as writer:
            writer.flush()
            assert rows_of(path, sql) == [(0,)]
        assert rows_of(path, sql) == [(2,)]


def test_error_in_the_recorder_is_the_stop_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with pytest.raises(RuntimeError), make_writer(path):
        raise RuntimeError("probe went away")
    assert rows_of(path, "SELECT stop_reason FROM sessions") == [("error: probe went away",)]


def test_readers_see_whole_commits_while_rows_are_written(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path) as writer:
        seen = []
        for part in range(10):
            writer.append(tables.EVENTS, events(writer, 1000, first=1000 * part))
            with open_reader(path) as reader:
                ((count,),) = reader.connection.execute("SELECT count(*) FROM events")
                seen.append(count)
            writer.flush()
        assert all(count % 1000 == 0 for count in seen)
        assert seen == sorted(seen)
    with open_reader(path) as reader:
        assert reader.connection.execute("SELECT count(*) FROM events").fetchall() == [(10_000,)]


def test_next_recorder_ends_the_incidents_that_were_open_when_it_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with make_writer(path, clock=lambda: NOW_NS + 7) as writer:
        rows = tables.INCIDENTS.rows(
            1, incident=1, session=writer.session, cause="gil", severity="HIGH", start_ns=NOW_NS
        )
        writer.append(tables.INCIDENTS, rows)
    db = apsw.Connection(str(path))
    db.execute("UPDATE raw_sessions SET stopped_ns = NULL, stop_reason = ''")
    db.close()
    assert rows_of(path, "SELECT end_ns FROM incidents") == [(None,)]
    with make_writer(path):
        pass
    assert rows_of(path, "SELECT end_ns FROM incidents") == [(NOW_NS + 7,)]
