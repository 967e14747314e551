"""What is not read yet waits in a file, so that a statement ends whoever reads its answer, and however late."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from ingero.serve.backlog import Backlog
from ingero.store.records import SessionFacts
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer

PIECE = b"0123456789abcdef" * 4096  # the capacity of a pipe


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def test_writing_does_not_wait_for_a_reader_and_nothing_is_lost_or_out_of_order(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    pieces = [PIECE, b"x" * 100_000, b"the end"] * 20
    with Backlog(writer) as backlog:
        for piece in pieces:
            backlog.write(piece)  # nobody has read a byte
        read = bytearray()

        def read_all() -> None:
            while len(read) < sum(map(len, pieces)):
                read.extend(os.read(reader, 1 << 20))

        late = threading.Thread(target=read_all)
        late.start()
    late.join(10)
    assert bytes(read) == b"".join(pieces)


def test_a_reader_that_goes_is_an_error(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with pytest.raises(BrokenPipeError), Backlog(writer) as backlog:  # noqa: PT012  # whichever of both meets it
        backlog.write(PIECE * 4)
        os.close(reader)
        while True:
            backlog.write(PIECE)


def test_a_reader_too_far_behind_is_waited_for(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    done = threading.Event()

    def write() -> None:
        with Backlog(writer, most_bytes=4 * len(PIECE)) as backlog:
            for _ in range(12):
                backlog.write(PIECE)
            done.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not done.wait(0.3)
    read = 0
    while read < 12 * len(PIECE):
        read += len(os.read(reader, 1 << 20))
    thread.join(10)
    assert done.is_set()


def test_query_into_a_pipe_that_nobody_reads_does_not_hold_the_log(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=time.time_ns()), node="n") as writer:
        drops = tables.DROPS.rows(60_000, session=1, start_ns=time.time_ns(), counter="c", reason="r" * 40, count=1)
        writer.append(tables.DROPS, drops)
        writer.flush()
        asked = [sys.executable, "-m", "ingero.cli.main", "query", "--json", "--db", str(path), "SELECT * FROM drops"]
        with subprocess.Popen(asked, stdout=subprocess.PIPE) as query:
            assert query.stdout
            first = os.read(query.stdout.fileno(), 100)  # it has begun, and there are megabytes behind it
            assert first.startswith(b"{")
            deadline = time.monotonic() + 20
            while not _can_begin_anew(path):
                assert time.monotonic() < deadline, "its statement goes on for as long as nobody reads"
                time.sleep(0.05)
            assert query.poll() is None
            rest = query.stdout.read()
            assert (first + rest).count(b"\n") == 60_000
            assert query.wait(10) == 0


def _can_begin_anew(path: Path) -> bool:
    db = apsw.Connection(str(path))
    try:
        list(db.execute("SELECT count(*) FROM sqlite_schema"))
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    except apsw.BusyError:
        return False
    finally:
        db.close()
    return True
