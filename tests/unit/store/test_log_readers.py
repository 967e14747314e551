"""The log counts into the size limit, also while somebody reads on and on; and whoever does is named."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import apsw
import numpy as np
import pytest

from ingero.store.errors import LogHeldError
from ingero.store.opening.log_readers import log_readers
from ingero.store.records import SessionFacts
from ingero.store.writing import tables
from ingero.store.writing.retention import log_bytes
from ingero.store.writing.writer import Writer

LIMIT = 16 << 20
BEGIN_NS = 1_790_000_000 * 1_000_000_000

READER = """
import sqlite3, sys
db = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True); db.isolation_level = None
db.execute("BEGIN"); db.execute("SELECT count(*) FROM raw_op_stats").fetchone()
print("reads", flush=True); sys.stdin.read()
"""


@contextmanager
def foreign_reader(path: Path) -> Iterator[int]:
    """Anybody's SQL tool with a transaction left open; its pid."""
    process = subprocess.Popen(
        [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "reads\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def append(writer: Writer, count: int, number: int) -> int:
    start = BEGIN_NS + (number * count + np.arange(count)) * 1_000
    rows = tables.EVENTS.rows(
        count, session=1, start_ns=start, duration_ns=5, pid=1, tid=1, source=1, op=3, stack_hash=start * 7
    )
    return writer.append(tables.EVENTS, rows)


def size_bytes(path: Path) -> int:
    return path.stat().st_size + log_bytes(path)


def test_file_and_log_stay_below_the_limit_and_the_reader_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, most = tmp_path / "a.db", 0
    facts = SessionFacts(uuid="u", started_ns=BEGIN_NS)
    with caplog.at_level(logging.WARNING), Writer(path, session=facts, node="n", max_db_bytes=LIMIT) as writer:
        append(writer, 20_000, 0)
        writer.flush()
        with foreign_reader(path) as pid:
            for number in range(1, 25):
                append(writer, 20_000, number)
                try:
                    writer.flush()
                except LogHeldError as error:
                    said = str(error)
                most = max(most, size_bytes(path))
            assert isinstance(writer.error, LogHeldError)
            assert f"[{pid}]" in said
            assert "--max-db" in said
            assert writer.drops()["raw_events", "write failed"] > 0
        deadline = time.monotonic() + 20
        while writer.error and time.monotonic() < deadline:
            time.sleep(0.1)
        assert writer.error is None, "the reader has gone"
        append(writer, 20_000, 100)
        writer.flush()
        most = max(most, size_bytes(path))
    assert most <= LIMIT
    assert any(f"[{pid}] is in the middle of reading" in one for one in caplog.messages), caplog.messages
    assert any("is being written again" in one for one in caplog.messages)
    db = apsw.Connection(str(path))
    ((newest,),) = db.execute("SELECT max(start_ns) FROM raw_events")
    assert newest == BEGIN_NS + (100 * 20_000 + 19_999) * 1_000


def test_the_end_of_a_recording_keeps_the_limit_too(tmp_path: Path) -> None:
    """The indexes that are made then are written into the log, too, and into the file when the reader has gone."""
    path, limit, number = tmp_path / "a.db", 2 * LIMIT, 0
    with ExitStack() as reading:
        with Writer(path, session=SessionFacts(uuid="u", started_ns=BEGIN_NS), node="n", max_db_bytes=limit) as writer:
            append(writer, 5_000, number)
            writer.flush()
            reading.enter_context(foreign_reader(path))
            with suppress(LogHeldError):
                for number in range(1, 100):
                    append(writer, 5_000, number)
                    writer.flush()
        assert 10 < number < 99, "it is full"
    db = apsw.Connection(str(path))
    list(db.execute("SELECT count(*) FROM sqlite_schema"))
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    assert size_bytes(path) <= limit
    db.close()


def test_readers_are_found_by_their_locks_and_nobody_else_is(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=BEGIN_NS), node="n") as writer:
        append(writer, 10, 0)
        writer.flush()
        assert log_readers(path) == ""
        with foreign_reader(path) as pid:
            assert log_readers(path) == f"{Path(f'/proc/{pid}/comm').read_text().strip()} [{pid}]"


def test_lines_of_other_files_and_strangers_are_no_readers(tmp_path: Path) -> None:
    (tmp_path / "a.db-shm").write_bytes(b"")
    inode = (tmp_path / "a.db-shm").stat().st_ino
    lines = [
        f"1: POSIX  ADVISORY  READ 0 fd:00:{inode} 123 123",  # of another pid namespace
        f"2: POSIX  ADVISORY  READ 77 fd:00:{inode}1 123 123",
        f"3: POSIX  ADVISORY  READ 78 fd:00:{inode} 128 128",  # any connection
        f"4: FLOCK  ADVISORY  READ 79 fd:00:{inode} 123 123",
        f"5: -> POSIX  ADVISORY  WRITE 80 fd:00:{inode} 124 124",  # waits for it
        f"6: POSIX  ADVISORY  READ 81 fd:00:{inode} 124 124",
        "damaged",
    ]
    (tmp_path / "locks").write_text("\n".join(lines))
    (tmp_path / "81").mkdir()
    (tmp_path / "81" / "comm").write_bytes(b"less \x1b[31m\n")
    assert log_readers(tmp_path / "a.db", proc=tmp_path) == "less \\x1b[31m [81]"
