"""What was held when a window began and when it ended, whatever became of the rows in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import numpy as np
import pytest

from ingero.ops import BY_NAME, MemoryKind
from ingero.store.reader import Reader, open_reader
from ingero.store.records import SessionFacts, Window
from ingero.store.writing import tables
from ingero.store.writing.retention import Retention
from ingero.store.writing.writer import Writer

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_790_000_000 // 60 * 60 * SECOND_NS
MALLOC = BY_NAME["cudaMalloc"]
LEAK, STEADY = 0x1000, 0x2000
SECONDS = 600
_MOST = ((1 << 63) - 1,)


def window(first_s: int, last_s: int) -> Window:
    return Window(begin_ns=BEGIN_NS + first_s * SECOND_NS, end_ns=BEGIN_NS + last_s * SECOND_NS)


def fill(writer: Writer) -> None:
    """A site that takes 10 bytes each second, and one that took 5000 once and says so each minute."""
    process, session = writer.process_id(10, 1), writer.session
    exit_ns = BEGIN_NS + SECONDS * SECOND_NS
    row = tables.PROCESSES.rows(1, process=process, session=session, pid=10, start_ns=1, exit_ns=exit_ns)
    writer.append(tables.PROCESSES, row)
    common = {
        "session": session, "process": process, "source": int(MALLOC.source), "op": MALLOC.code,
        "memory_kind": int(MemoryKind.DEVICE),
    }  # fmt: skip
    seconds = np.arange(SECONDS)
    start = BEGIN_NS + seconds * SECOND_NS
    level = (seconds + 1) * 10
    rows = tables.ALLOCATIONS.rows(
        SECONDS, **common, start_ns=start, caller=LEAK, live_bytes=level, live_count=seconds + 1, peak_bytes=level,
        allocated_bytes=10, allocations=1, library=writer.intern("libtorch.so"), offset=7,
    )  # fmt: skip
    writer.append(tables.ALLOCATIONS, rows)
    minutes = start[::60]
    rows = tables.ALLOCATIONS.rows(
        len(minutes), **common, start_ns=minutes, caller=STEADY, live_bytes=5000, live_count=1, peak_bytes=5000,
        allocated_bytes=[5000, *[0] * (len(minutes) - 1)], allocations=[1, *[0] * (len(minutes) - 1)],
    )  # fmt: skip
    writer.append(tables.ALLOCATIONS, rows)
    rows = tables.MEMORY_SECONDS.rows(
        SECONDS, session=session, start_ns=start, process=process, memory_kind=int(MemoryKind.DEVICE),
        live_bytes=5000 + level, live_count=seconds + 2, peak_bytes=5000 + level,
    )  # fmt: skip
    writer.append(tables.MEMORY_SECONDS, rows)
    rows = tables.OP_STATS.rows(
        SECONDS, session=session, start_ns=start, process=process, source=1, op=1, count=1, sum_ns=1
    )
    writer.append(tables.OP_STATS, rows)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    facts = SessionFacts(uuid="u", started_ns=BEGIN_NS)
    with Writer(tmp_path / "a.db", session=facts, node="node") as writer:
        fill(writer)
    return tmp_path / "a.db"


@pytest.fixture
def reader(recording: Path) -> Iterator[Reader]:
    with open_reader(recording) as opened:
        yield opened


def fold(db: apsw.Connection, path: Path) -> None:
    """Trims until the seconds of memory are folded, which comes before anything of them is deleted."""
    trimmed = Retention(db, path, 1, clock=lambda: BEGIN_NS)
    while db.execute("SELECT count(*) FROM raw_memory_seconds WHERE period_s = 60").fetchall() == [(0,)]:
        assert trimmed.step()


def levels(reader: Reader, of: Window) -> dict[int, tuple[int, int, int]]:
    sites = reader.memory_sites(of)
    assert all(site.begin_bytes + site.allocated_bytes - site.freed_bytes == site.end_bytes for site in sites)
    return {site.caller: (site.begin_bytes, site.end_bytes, site.growth_bytes) for site in sites}


def test_a_window_knows_what_was_held_when_it_began(reader: Reader) -> None:
    assert levels(reader, window(100, 130)) == {LEAK: (1000, 1300, 300), STEADY: (5000, 5000, 0)}


def test_the_whole_recording_begins_with_nothing(reader: Reader) -> None:
    assert levels(reader, window(0, SECONDS)) == {LEAK: (0, 6000, 6000), STEADY: (0, 5000, 5000)}


def test_a_site_names_its_caller_and_its_kind_of_memory(reader: Reader) -> None:
    site = next(site for site in reader.memory_sites(window(100, 130)) if site.caller == LEAK)
    assert (site.name, site.library, site.offset, site.memory_kind) == ("cudaMalloc", "libtorch.so", 7, "device")
    assert (site.begin_count, site.end_count, site.peak_bytes, site.allocations) == (100, 130, 1300, 30)


def test_a_process_that_has_ended_holds_nothing(reader: Reader) -> None:
    assert reader.memory_sites(window(SECONDS + 10, SECONDS + 20)) == []
    assert len(reader.memory_seconds(window(SECONDS + 10, SECONDS + 20))) == 0


def test_only_the_process_that_was_asked_for_is_answered(reader: Reader) -> None:
    assert reader.memory_sites(window(0, SECONDS), process=99) == []
    assert len(reader.memory_seconds(window(0, SECONDS), process=99)) == 0


def test_a_time_line_begins_with_the_level_from_before_the_window(reader: Reader) -> None:
    seconds = reader.memory_seconds(window(100, 103))
    assert seconds["live_bytes"].tolist() == [6000, 6010, 6020, 6030]
    assert seconds["start_ns"][0] == BEGIN_NS + 99 * SECOND_NS


def test_folding_seconds_to_minutes_keeps_sums_and_the_level_at_the_end_of_each(recording: Path) -> None:
    db = apsw.Connection(str(recording))
    sums = "SELECT sum(allocated_bytes), sum(allocations), max(peak_bytes) FROM raw_allocations"
    before = db.execute(sums).fetchall()
    fold(db, recording)
    assert db.execute(sums).fetchall() == before
    for name, key in (("raw_allocations", "caller"), ("raw_memory_seconds", "process")):
        folded = f"SELECT {key}, start_ns, live_bytes, live_count FROM {name} WHERE period_s = 60 ORDER BY start_ns"
        minutes = db.execute(folded).fetchall()
        assert len(minutes) >= 5
        for of, start_ns, live_bytes, live_count in minutes:
            end_s = (int(start_ns) - BEGIN_NS) // SECOND_NS + 60
            base = (5000, 1) if name == "raw_memory_seconds" else (0, 0)
            grown = (end_s * 10 + base[0], end_s + base[1])
            assert (live_bytes, live_count) == ((5000, 1) if of == STEADY else grown)
    db.close()


def test_sums_larger_than_a_number_of_the_database_are_answered_and_folded(recording: Path) -> None:
    db = apsw.Connection(str(recording))
    db.execute("UPDATE raw_allocations SET failures = 1, failed_bytes = ?", (1 << 60,))
    db.execute("UPDATE raw_op_stats SET bytes = ?", (1 << 60,))
    fold(db, recording)
    assert db.execute("SELECT max(failed_bytes) FROM raw_allocations WHERE period_s = 60").fetchall() == [_MOST]
    db.close()
    with open_reader(recording) as reader:
        (leak,) = (one for one in reader.memory_sites(window(0, SECONDS)) if one.caller == LEAK)
        assert (leak.failures, leak.failed_bytes) == (SECONDS, *_MOST)
        assert [one.bytes for one in reader.op_totals(window(0, SECONDS))] == [*_MOST]


def test_what_was_held_is_the_same_after_folding(recording: Path) -> None:
    with open_reader(recording) as reader:
        before = levels(reader, window(300, SECONDS))
    db = apsw.Connection(str(recording))
    fold(db, recording)
    db.close()
    with open_reader(recording) as reader:
        assert levels(reader, window(300, SECONDS)) == before
