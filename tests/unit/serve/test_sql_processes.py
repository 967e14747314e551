"""Statements of clients in processes of their own: the same answers and refusals, and an end where SQLite has none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ingero.errors import IngeroError
from ingero.serve.recording_source import RecordingSource
from ingero.serve.sql import SqlError, SqlRefusedError, TimeLimitError, run_sql
from ingero.serve.sql_processes import SqlProcesses
from ingero.store.errors import NoDatabaseError
from ingero.store.records import SessionFacts
from ingero.store.user_sql import guard
from ingero.store.writing.writer import Writer
from tests.unit.reader_recording import fill
from tests.unit.serve.test_sql import REFUSED, TOO_MUCH

_CLIENTS = 8
_MOST_BYTES = 512 << 20


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with rows in its tables."""
    path = tmp_path_factory.mktemp("sql") / "recording.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=1), node="n") as writer:
        fill(writer)
    return path


@pytest.fixture(scope="module")
def processes() -> Iterator[SqlProcesses]:
    """Where statements run."""
    with SqlProcesses() as processes:
        yield processes


def test_answers_are_the_same(recorded: Path, processes: SqlProcesses) -> None:
    sql = "SELECT pid, name, NULL, 1.5, x'00ff', 9223372036854775807 FROM processes"
    here, there = run_sql(recorded, sql), processes.run(recorded, sql, max_rows=10_000, timeout_s=10)
    assert (there.columns, list(map(tuple, there.rows)), there.is_truncated, there.notes) == (
        here.columns,
        here.rows,
        here.is_truncated,
        here.notes,
    )
    assert there.rows


@pytest.mark.parametrize("sql", list(REFUSED.values())[:12], ids=list(REFUSED)[:12])
def test_refusals_are_the_same(recorded: Path, processes: SqlProcesses, sql: str) -> None:
    raised = []
    for run in (run_sql, processes.run):
        with pytest.raises(SqlRefusedError) as refusal:
            run(recorded, sql, max_rows=10, timeout_s=10)
        raised.append((str(refusal.value), refusal.value.hint, refusal.value.kind))
    assert raised[0] == raised[1]


def test_a_file_that_is_not_there_is_said_as_ever(tmp_path: Path, processes: SqlProcesses) -> None:
    with pytest.raises(NoDatabaseError, match=r"none\.db"):
        processes.run(tmp_path / "none.db", "SELECT 1", max_rows=1, timeout_s=10)


def test_eight_clients_take_no_more_time_and_room_than_they_may(recorded: Path, processes: SqlProcesses) -> None:
    """All of what takes too much, by eight at once."""

    def ask(sql: str) -> float:
        begin_s = time.monotonic()
        with pytest.raises(IngeroError):
            RecordingSource(recorded, sql=processes).run_sql(sql, max_rows=10_000, timeout_s=1)
        return time.monotonic() - begin_s

    with ThreadPoolExecutor(_CLIENTS) as clients:
        took_s = list(clients.map(ask, TOO_MUCH.values()))
    assert max(took_s) < 1 + 1


def test_what_sqlite_does_not_end_is_ended(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the guard's limits on patterns and texts: one step of SQLite that takes half a minute and more."""
    del tmp_path
    monkeypatch.setattr(guard, "_SLOW_FUNCTIONS", frozenset())
    monkeypatch.setitem(guard._LIMITS, next(iter(guard._LIMITS)), 1 << 26)
    sql = f"SELECT printf('%.10000000c', 'a') LIKE '%{'a' * 990}b'"
    with SqlProcesses() as unguarded:
        begin_s = time.monotonic()
        with pytest.raises(TimeLimitError):
            unguarded.run(recorded, sql, max_rows=1, timeout_s=1)
        assert time.monotonic() - begin_s < 5  # 1.7 s, and what a busy machine adds
        assert unguarded.run(recorded, "SELECT 1", max_rows=1, timeout_s=10).rows == [(1,)]


def test_what_takes_too_much_memory_is_refused(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the guard's limit on memory."""
    monkeypatch.setattr(guard, "_MAX_MEMORY_BYTES", 1 << 40)
    monkeypatch.setitem(guard._LIMITS, next(iter(guard._LIMITS)), 1 << 30)
    with SqlProcesses() as unguarded, pytest.raises((SqlError, MemoryError)):
        unguarded.run(recorded, "SELECT hex(printf('%.100000000c', 'a'))", max_rows=1, timeout_s=10)
