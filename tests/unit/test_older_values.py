"""What recordings of version 1 hold in other words: read, merged and continued as if written today."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import apsw
import pytest

from ingero import given_up
from ingero.capture.budget.agent_limiter import AGENT_LEVELS
from ingero.capture.budget.levels import CODES, Level
from ingero.serve.text.coverage import coverage_lines
from ingero.store.merge import merge
from ingero.store.older.older_values import SENTENCES_OF_VERSION_1
from ingero.store.opening.opening import open_database
from ingero.store.reader import open_reader
from ingero.store.records import SessionFacts, Window
from ingero.store.writing import migrations
from ingero.store.writing.writer import Writer

STARTED_NS = 1_000_000_000_000
STORED = "\n".join(SENTENCES_OF_VERSION_1)
CODES_STORED = ",".join(given.code for given in SENTENCES_OF_VERSION_1.values())
NOTES = ("", "native frames end early: no table", "no Python frames: gone", "a part of the stack was lost")


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A recording of version 1: its tables, and its sentences in them."""
    path = tmp_path / "older.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=STARTED_NS), node="n", clock=lambda: STARTED_NS):
        pass
    db = apsw.Connection(str(path))
    (sql,) = next(iter(db.execute("SELECT sql FROM sqlite_schema WHERE name = 'raw_stacks'")))
    before, _, _ = sql.partition(",        -- 0: not recorded")
    db.execute("DROP VIEW stack_traces; DROP TABLE raw_stacks")
    db.execute(f"{before}         -- 0: not recorded; a hash is of one process\n) STRICT")
    db.execute("CREATE INDEX raw_stacks_process ON raw_stacks(process)")
    db.execute("PRAGMA user_version = 1")
    for number, note in enumerate(NOTES, 1):
        db.execute("INSERT INTO raw_stacks(hash, note) VALUES (?, ?)", (number, note))
    db.execute(
        "INSERT INTO raw_overhead_levels(session, time_ns, level, not_traced, reason) VALUES (1, ?, 6, ?, 'costly')",
        (STARTED_NS, STORED),
    )
    db.execute(
        "UPDATE raw_sessions SET stopped_ns = started_ns + 10000000000, not_traced = ?",
        (json.dumps({"Python lines of calls that returned within 2 s": "no task storage", "IO": "switched off (io)"}),),
    )
    db.close()
    return path


def found_in(db: apsw.Connection) -> tuple[list[str], list[str], list[int]]:
    return (
        sorted(key for (key,) in db.execute("SELECT key FROM sessions, json_each(not_traced)")),
        [text for (text,) in db.execute("SELECT not_traced FROM overhead_levels WHERE not_traced <> ''")],
        [whole for (whole,) in db.execute("SELECT is_python_whole FROM stack_traces ORDER BY hash")],
    )


TODAY = (["IO", "python_lines"], [CODES_STORED], [1, 1, 0, 0])


def test_a_reader_sees_codes(older: Path) -> None:
    opened = open_database(older)
    assert found_in(opened.db) == TODAY
    opened.db.close()


def test_a_narrowed_reader_sees_codes(older: Path) -> None:
    opened = open_database(older, node="n")
    assert found_in(opened.db) == TODAY
    opened.db.close()


def test_their_sentences_are_those_of_today(older: Path) -> None:
    with open_reader(older) as reader:
        lines = list(coverage_lines(reader, Window(begin_ns=STARTED_NS, end_ns=STARTED_NS + 10**10)))
        assert [stack.is_python_whole for stack in reader.stacks([2, 3])] == [1, 0]
    for given in SENTENCES_OF_VERSION_1.values():
        assert any(given.text in line for line in lines)
    assert not any("sync_interval" in line for line in lines)


def test_a_merged_recording_holds_codes(older: Path, tmp_path: Path) -> None:
    merge([older], tmp_path / "merged.db")
    db = apsw.Connection(str(tmp_path / "merged.db"))
    assert found_in(db) == TODAY
    assert migrations.pragma(db, "user_version") == migrations.NEWEST_VERSION


def test_a_continued_recording_holds_codes(older: Path) -> None:
    with Writer(older, session=SessionFacts(uuid="v", started_ns=STARTED_NS + 10**11), node="n"):
        pass
    db = apsw.Connection(str(older))
    assert found_in(db) == TODAY
    assert migrations.pragma(db, "user_version") == migrations.NEWEST_VERSION


def test_sentences_of_version_1_are_what_such_files_hold_byte_by_byte() -> None:
    digest = hashlib.sha256("\n".join(sorted(SENTENCES_OF_VERSION_1)).encode()).hexdigest()
    assert digest == "86ff4b85211932ab1213f19e7eb2d6dd09a25c22eb237d09ee9d78508d98ab76", (
        "a recording of version 1 holds the sentence as it was: never reword it"
    )


def test_every_level_and_level_has_a_code_with_a_sentence() -> None:
    codes = [*CODES.values(), *(level.code for level in AGENT_LEVELS if level.code)]
    assert len(set(codes)) == len(Level) + len(AGENT_LEVELS) - 1
    assert set(codes) <= given_up.BY_CODE.keys()


def test_the_sentence_of_a_level_says_what_the_level_does() -> None:
    for level in AGENT_LEVELS[1:]:
        text = given_up.BY_CODE[level.code].text
        assert text.startswith(f"{level.records_ratio:.0%} ")
        assert text.endswith(f" {level.drain_ns / 1e9:g} s")


def test_an_unknown_code_is_shown_as_it_is_and_lacks_no_evidence() -> None:
    (one, other) = given_up.given_up("launches, what a later version gives up")
    assert (one, other.text, other.evidence) == (given_up.LAUNCHES_OFF, "what a later version gives up", frozenset())
    assert given_up.given_up("") == ()
