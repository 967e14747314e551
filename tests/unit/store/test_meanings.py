"""docs/schema.md: every published view is described, and the questions given as examples are answered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ingero.serve.sql import run_sql
from ingero.store import meanings
from ingero.store.meanings import Published, documentation
from ingero.store.records import SessionFacts
from ingero.store.writing.writer import Writer
from tests.unit.reader_recording import fill

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = documentation()
EVERY_VIEW = pytest.mark.parametrize("one", PUBLISHED, ids=lambda one: one.name)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("meanings") / "a.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=1), node="n1") as writer:
        fill(writer)
    return path


@EVERY_VIEW
def test_a_view_says_what_a_row_of_it_is(one: Published) -> None:
    assert one.rows


@EVERY_VIEW
def test_the_example_of_a_view_reads_it_and_is_answered(one: Published, recorded: Path) -> None:
    assert one.name in meanings.EXAMPLES
    assert re.search(rf"\b{one.name}\b", one.example)
    run_sql(recorded, one.example)


def test_every_statement_of_the_document_is_answered(recorded: Path) -> None:
    document = (ROOT / "docs" / "schema.md").read_text()
    statements = re.findall(r"```sql\n(.*?)```", document, re.DOTALL)
    assert len(statements) == len(PUBLISHED) + 2
    for statement in statements:
        run_sql(recorded, statement)


def test_what_is_said_of_a_view_or_column_is_about_one_that_exists() -> None:
    columns = {(one.name, column.name) for one in PUBLISHED for column in one.columns}
    views = {one.name for one in PUBLISHED}
    assert set(meanings._ROWS) | set(meanings.EXAMPLES) <= views
    assert set(meanings._IN_VIEW) <= columns
    assert set(meanings._COLUMNS) <= {name for _, name in columns}


def test_the_unit_of_a_column_tells_moments_from_durations() -> None:
    units = {(one.name, column.name): column.unit for one in PUBLISHED for column in one.columns}
    assert (
        units["events", "timestamp"]
        == units["sync_intervals", "prev_sync_end_ns"]
        == units["sessions", "started_at"]
        == "unix ns"
    )
    assert units["events", "duration_ns"] == units["sync_intervals", "idle_ns"] == units["op_stats", "sum_ns"] == "ns"
    assert units["tenants", "copied_bytes"] == "bytes"
    assert not units["events", "pid"]


def test_a_column_without_words_of_its_own_takes_those_of_the_stored_one() -> None:
    meaning = {(one.name, column.name): column.meaning for one in PUBLISHED for column in one.columns}
    assert meaning["overhead_levels", "level"] == "highest one in force; 0: everything is traced"
    assert meaning["sync_intervals", "sync_runq_ns"].endswith("could run, but others did")
