"""Users' SQL: what may be asked is answered, everything else is refused, in bounded time and memory."""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import resource
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingero.serve.sql import (
    SizeLimitError,
    SqlError,
    SqlRefusedError,
    SqlSyntaxError,
    TimeLimitError,
    UnknownColumnError,
    UnknownTableError,
    count_rows,
    open_rows,
    run_sql,
)
from ingero.store.records import SessionFacts
from ingero.store.user_sql import guard
from ingero.store.user_sql.guard import FUNCTIONS
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer
from tests.unit.reader_recording import PER_CONTAINER, PER_CONTAINER_NCCL, fill

DATA = Path(__file__).parents[2] / "data" / "ingero-0.x"
SHORT_S = 0.1  # a time limit that a statement without end reaches soon
MOST_BYTES = 700 << 20  # 256 MiB for SQLite until it is stopped, twice 190 MiB for a row of the largest values
BIG = "printf('%1000000d', 1)"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sql") / "a.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=1), node="n1") as writer:
        fill(writer)
    return path


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("older") / "older.db"
    path.write_bytes(lzma.decompress((DATA / "sample-cluster.db.xz").read_bytes()))
    return path


@pytest.fixture(scope="module", params=["recorded", "older"])
def either(request: pytest.FixtureRequest) -> Path:
    """A recording of this product, and one of Ingero 0.9."""
    path: Path = request.getfixturevalue(request.param)
    return path


def fingerprint(path: Path) -> dict[str, str]:
    """What lies in the folder of a database; what SQLite keeps beside it while reading is no part of it."""
    return {
        one.name: hashlib.sha256(one.read_bytes()).hexdigest()
        for one in path.parent.iterdir()
        if not one.name.endswith(("-shm", "-wal"))
    }


REFUSED = {
    "delete behind a WITH": "WITH x AS (SELECT 1) DELETE\tFROM events",
    "delete": "DELETE FROM raw_events",
    "update": "UPDATE ops SET name = ''",
    "insert": "INSERT INTO ops(source_id, op_id, name, description) VALUES (99, 1, '', '')",
    "replace": "REPLACE INTO sources VALUES (1, '', '')",
    "drop": "DROP TABLE raw_events",
    "alter": "ALTER TABLE ops ADD COLUMN x",
    "create": "CREATE TABLE x(a)",
    "temporary table": "CREATE TEMP TABLE x AS SELECT 1",
    "temporary view": "CREATE TEMP VIEW events AS SELECT * FROM raw_events",
    "temporary trigger": "CREATE TEMP TRIGGER t DELETE ON ops BEGIN SELECT 1; END",
    "virtual table": "CREATE VIRTUAL TABLE temp.x USING fts5(a)",
    "index": "CREATE INDEX i ON raw_events(pid)",
    "attach": "ATTACH 'other.db' AS other",
    "attach of what is there": "ATTACH ':memory:' AS main2",
    "detach": "DETACH old",
    "vacuum": "VACUUM",
    "vacuum into a file": "VACUUM INTO 'copy.db'",
    "analyze": "ANALYZE",
    "reindex": "REINDEX",
    "pragma": "PRAGMA query_only = 0",
    "pragma that only tells": "PRAGMA table_info(events)",
    "pragma that writes": "PRAGMA wal_checkpoint(TRUNCATE)",
    "pragma as a table": "SELECT * FROM pragma_table_info('events')",
    "pragma as a table, counted": "SELECT count(*) FROM pragma_integrity_check",
    "transaction": "BEGIN IMMEDIATE",
    "savepoint": "SAVEPOINT x",
    "second statement": "SELECT 1; DELETE FROM ops",
    "second statement behind a comment": "SELECT 1 -- ;\n; /* */ DROP VIEW events",
    "explained delete": "EXPLAIN DELETE FROM ops",
    "library": "SELECT load_extension('/lib/x.so')",
    "schema": "SELECT sql FROM sqlite_schema",
    "schema by its old name": "SELECT * FROM sqlite_master",
    "temporary schema": "SELECT count(*) FROM sqlite_temp_schema",
    "sequence numbers": "SELECT * FROM sqlite_sequence",
    "pages": "SELECT * FROM dbstat",
    "internal table": "SELECT * FROM raw_events",
    "internal table with its database": "SELECT count(*) FROM main.raw_strings",
    "internal table behind a published name": "WITH events AS (SELECT * FROM raw_events) SELECT * FROM events",
    "internal table in a subquery": "SELECT (SELECT text FROM raw_strings LIMIT 1) FROM events",
    "internal table, renamed": "SELECT events.text FROM raw_strings AS events",
    "table of the older file": "SELECT * FROM old.events",
    "full-text functions": "SELECT fts5(1)",
    "pointer": "SELECT * FROM carray(1, 1)",
    "zeroblob": "SELECT zeroblob(1000000000)",
    "randomblob": "SELECT randomblob(1000000000)",
    "connection state": "SELECT last_insert_rowid(), changes(), sqlite_version()",
    "json_pretty": "SELECT json_pretty('[1]', printf('%1000000s', ''))",
    "json_patch": "SELECT json_patch('{}', '{}')",
    "json_remove": "SELECT json_remove('[1]', '$[0]')",
    "unhex": "SELECT unhex('  ', ' ')",
    "parameter": "SELECT * FROM ops WHERE name = ?",
    "quotes that are no text": 'SELECT * FROM events WHERE op_name = "cudaMalloc"',
    "NUL": "SELECT 1\0; DELETE FROM ops",
    "surrogate": "SELECT '\ud800'",
    "nothing": "  -- nothing\n",
}
TOO_MUCH = {
    "endless recursion": "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
    "endless rows": "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) OVER () FROM c",
    "endless sort": f"WITH RECURSIVE c(x) AS (SELECT {BIG} UNION ALL SELECT {BIG} FROM c) SELECT x FROM c ORDER BY x",
    "product of tables": "SELECT count(*) FROM events a, events b, events c, events d, events e, events f",
    "distinct rows": "SELECT count(DISTINCT a.id || b.id || c.id || d.id) FROM events a, events b, events c, events d",
    "windows without end": "SELECT median(a.op_id) OVER (ORDER BY a.op_id) FROM ops a, ops b, ops c, ops d",
    "wide result": f"SELECT {', '.join([BIG] * 150)}",
    "too many columns": f"SELECT {', '.join(['1'] * 300)}",
    "large answer": f"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT {BIG} FROM c",
    "text of a gigabyte": "SELECT printf('%.*c', 1000000000, 'x')",
    "padding": "SELECT format('%*d', 1000000000, 1)",
    "doubling": f"SELECT hex(hex(hex({BIG})))",
    "chain of replacements": "SELECT replace(replace(replace(printf('%60000d', 1), ' ', '  '), ' ', '  '), ' ', '  ')",
    "joined texts": f"SELECT group_concat({BIG}) FROM ops a, ops b",
    "array without end": f"SELECT json_group_array({BIG}) FROM ops a, ops b",
    "growing recursion": "WITH RECURSIVE f(a, b) AS (SELECT 'x', 'y' UNION SELECT b, a || b FROM f) SELECT * FROM f",
    "search for half of a text in another": "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
    "SELECT sum(instr(printf('%65000d', 1), printf('%32000d', x + 10))) FROM c",
    "patterns over a long text": "WITH t AS MATERIALIZED (SELECT printf('%.65000c', 'a') x) "
    f"SELECT sum(t.x LIKE '%{'a' * 90}b'), sum(t.x GLOB '*[{'b' * 90}]c') FROM t, ops a, ops b",
    "pattern over a text that is too long": f"SELECT {BIG} LIKE '%a%'",
    "long pattern": f"SELECT 'a' LIKE '{'a' * 200}'",
    "answer of control characters": "SELECT printf('%.100000c', char(1)) FROM ops",
    "trimming with a long list": f"SELECT trim({BIG}, printf('%30000d', 1))",
    "long statement": f"SELECT '{'x' * 70_000}'",
    "deep statement": f"SELECT {'+'.join(['1'] * 300)}",
    "many SELECTs": "SELECT 1" + " UNION ALL SELECT 1" * 200,
    "WITH that doubles": "WITH c0 AS (SELECT 1 x), "
    + ", ".join(f"c{i} AS (SELECT a.x FROM c{i - 1} a, c{i - 1} b)" for i in range(1, 30))
    + " SELECT * FROM c29",
}


@pytest.mark.parametrize("sql", REFUSED.values(), ids=REFUSED)
def test_what_is_no_question_to_the_published_views_is_refused(either: Path, sql: str) -> None:
    before = fingerprint(either)
    with pytest.raises(SqlError) as refusal:
        run_sql(either, sql, timeout_s=SHORT_S)
    assert refusal.value.hint
    assert not isinstance(refusal.value, TimeLimitError)
    assert fingerprint(either) == before


@pytest.mark.parametrize("sql", TOO_MUCH.values(), ids=TOO_MUCH)
def test_what_takes_too_much_time_or_room_is_stopped(recorded: Path, sql: str) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((TimeLimitError, SizeLimitError, SqlSyntaxError)) as refusal:
        run_sql(recorded, sql, timeout_s=SHORT_S)
    assert refusal.value.hint
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) << 10 < MOST_BYTES
    assert run_sql(recorded, "SELECT 1").rows == [(1,)]


def test_an_attack_leaves_no_file_behind(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for sql in (
        "VACUUM INTO 'copy.db'",
        "ATTACH 'other.db' AS o",
        "WITH x AS (SELECT 1) SELECT * FROM x; VACUUM INTO 'b'",
    ):
        with pytest.raises(SqlRefusedError):
            run_sql(recorded, sql)
    assert list(tmp_path.iterdir()) == []


SQL_WORDS = """
SELECT DELETE UPDATE INSERT INTO FROM WHERE WITH RECURSIVE AS VALUES SET DROP TABLE VIEW ATTACH VACUUM PRAGMA BEGIN
COMMIT EXPLAIN RETURNING REPLACE ALTER ADD UNION ALL ORDER BY LIMIT sum events raw_events ops op_stats sqlite_schema
main temp x name count ( ) , ; * . = 1 'a' -- /* writable_schema journal_mode query_only user_version
"""
WORDS = st.sampled_from(SQL_WORDS.split())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(WORDS, max_size=14))
def test_no_statement_of_sql_words_changes_the_file(either: Path, words: list[str]) -> None:
    before = fingerprint(either)
    _ask(either, " ".join(words))
    assert fingerprint(either) == before


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sql=st.text(max_size=80))
def test_any_text_is_answered_or_refused_and_changes_nothing(recorded: Path, sql: str) -> None:
    before = fingerprint(recorded)
    _ask(recorded, sql)
    assert fingerprint(recorded) == before


CHANGES = st.sampled_from([sql for name, sql in REFUSED.items() if name not in ("NUL", "surrogate", "nothing")])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    change=CHANGES,
    before=st.sampled_from(["", " ", "/* */", "-- x\n", "EXPLAIN ", "SELECT 1; ", "; "]),
    upper=st.booleans(),
)
def test_dressing_a_change_up_does_not_let_it_through(recorded: Path, change: str, before: str, upper: bool) -> None:
    file_before = fingerprint(recorded)
    with pytest.raises(SqlError):
        run_sql(recorded, before + (change.upper() if upper else change), timeout_s=SHORT_S)
    assert fingerprint(recorded) == file_before


def _ask(path: Path, sql: str) -> None:
    with contextlib.suppress(SqlError):
        run_sql(path, sql, max_rows=10, timeout_s=SHORT_S)


def test_a_refusal_of_an_internal_table_names_the_view_to_ask(recorded: Path) -> None:
    with pytest.raises(SqlRefusedError, match="raw_op_stats is internal") as refusal:
        run_sql(recorded, "SELECT * FROM raw_op_stats")
    assert refusal.value.hint == "ask op_stats"


def test_a_misspelt_view_brings_the_nearest_and_the_list(recorded: Path) -> None:
    with pytest.raises(UnknownTableError, match="did you mean events") as error:
        run_sql(recorded, "SELECT * FROM event")
    assert "cuda_events" in error.value.hint
    assert "raw_" not in error.value.hint


def test_a_misspelt_column_brings_the_nearest(recorded: Path) -> None:
    with pytest.raises(UnknownColumnError, match="did you mean duration_ns"):
        run_sql(recorded, "SELECT e.duration_n FROM events e")


def test_the_time_limit_says_how_long_and_what_to_do(recorded: Path) -> None:
    ticks = iter(range(0, 10**15, 10**9))  # each look at the clock takes a second
    endless = TOO_MUCH["endless recursion"]
    with (
        pytest.raises(TimeLimitError, match="after 5 s"),
        open_rows(recorded, endless, timeout_s=5, clock=lambda: next(ticks)),
    ):
        pass


def test_without_a_time_limit_no_clock_stops_a_statement(recorded: Path) -> None:
    ticks = iter(range(0, 10**18, 10**15))
    some = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 100000) SELECT count(*) FROM c"
    with open_rows(recorded, some, timeout_s=0, clock=lambda: next(ticks)) as rows:
        assert list(rows) == [(100_000,)]


def test_the_time_of_whoever_takes_the_rows_does_not_count(recorded: Path) -> None:
    now_ns = [0]
    some = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 100000) SELECT x FROM c"
    with open_rows(recorded, some, timeout_s=5, clock=lambda: now_ns[0]) as rows:
        with rows.paused():
            now_ns[0] += 10**12
        assert sum(1 for _ in rows) == 100_000


@pytest.mark.parametrize(
    ("limit", "sql", "text"),
    [
        ("_MAX_TEMPORARY_BYTES", TOO_MUCH["endless sort"], "temporary files"),
        ("_MAX_MEMORY_BYTES", TOO_MUCH["array without end"], "memory"),
    ],
)
def test_room_is_limited_whatever_the_time(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, limit: str, sql: str, text: str
) -> None:
    monkeypatch.setattr(guard, limit, 8 << 20)
    with pytest.raises(SizeLimitError, match=text):
        run_sql(recorded, sql, timeout_s=0)


def test_more_rows_than_asked_for_are_cut_and_that_is_said(recorded: Path) -> None:
    answer = run_sql(recorded, "SELECT * FROM ops", max_rows=5)
    assert (len(answer.rows), answer.is_truncated) == (5, True)
    assert "first 5 rows" in answer.notes[0]


def test_exactly_as_many_rows_as_asked_for_are_whole(recorded: Path) -> None:
    answer = run_sql(recorded, "SELECT value FROM json_each('[1, 2, 3]')", max_rows=3)
    assert (answer.rows, answer.is_truncated, answer.notes) == ([(1,), (2,), (3,)], False, ())


def test_columns_are_known_where_there_are_no_rows(recorded: Path) -> None:
    assert run_sql(recorded, "SELECT pid, tid AS thread FROM events WHERE false").columns == ("pid", "thread")


def test_one_semicolon_and_comments_are_no_second_statement(either: Path) -> None:
    assert run_sql(either, "/* one */ SELECT 1; -- two\n ; ").rows == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "VALUES (1)",
        "EXPLAIN QUERY PLAN SELECT * FROM events",
        "WITH events AS (SELECT 1 AS x) SELECT count(*) FROM events",
        "SELECT percentile(duration_ns, 99), median(duration_ns) FROM events",
        "SELECT row_number() OVER (PARTITION BY pid ORDER BY timestamp), lag(timestamp) OVER () FROM events",
        "SELECT strftime('%H:%M', timestamp / 1e9, 'unixepoch') FROM events",
        "SELECT json_extract(options, '$.max_overhead'), options ->> 'x' FROM sessions",
        "SELECT trim('xxaxx', 'x'), replace('a', 'a', 'b'), instr('ab', 'b')",
        "SELECT count(*) FROM nccl_waits JOIN communicators USING (process)",
        "SELECT * FROM tenants, gpus",
    ],
)
def test_usual_questions_are_answered(either: Path, sql: str) -> None:
    run_sql(either, sql)


def test_every_published_view_and_lookup_table_can_be_read(either: Path) -> None:
    with pytest.raises(UnknownTableError) as error:
        run_sql(either, "SELECT * FROM no_such")
    names = error.value.hint.removeprefix("ask one of ").split(", ")
    assert {"events", "containers", "op_stats", "ops", "thread_states"} <= set(names)
    for name in names:
        run_sql(either, f"SELECT * FROM {name} LIMIT 1")


def test_every_function_that_is_allowed_exists() -> None:
    db = apsw.Connection(":memory:")
    known = {name for (name,) in db.execute("SELECT name FROM pragma_function_list")}
    not_listed = {"if", "iif", "coalesce", "json_each", "json_tree", "likely", "unlikely", "likelihood", "ifnull"}
    assert known | not_listed >= FUNCTIONS


def test_trimming_is_as_sqlite_does_it(recorded: Path) -> None:
    texts = "'xyaxy', 'xy'"
    plain = list(
        apsw.Connection(":memory:").execute(f"SELECT trim({texts}), ltrim({texts}), rtrim({texts}), trim(NULL, 'x')")
    )
    assert run_sql(recorded, f"SELECT trim({texts}), ltrim({texts}), rtrim({texts}), trim(NULL, 'x')").rows == plain


def test_a_text_that_is_no_utf_8_is_an_error_with_a_way_out(recorded: Path) -> None:
    with pytest.raises(SqlSyntaxError, match="hex"):
        run_sql(recorded, "SELECT CAST(x'ff' AS TEXT)")


def test_rows_are_counted_without_being_read(recorded: Path) -> None:
    assert count_rows(recorded, "SELECT * FROM events ORDER BY id; -- all", timeout_s=5) == 54
    assert count_rows(recorded, TOO_MUCH["endless recursion"], timeout_s=SHORT_S) is None


def test_a_recording_is_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "live.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=1), node="n1") as writer:
        fill(writer)
        writer.flush()
        assert run_sql(path, "SELECT count(*) FROM events").rows == [(54,)]


# What is stored of the calls


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM cuda_events",
        "SELECT sum(duration_ns) FROM cuda_events GROUP BY op",
        "SELECT x FROM (SELECT avg(duration_ns) AS x FROM cuda_events)",
        "WITH mine AS (SELECT * FROM cuda_events) SELECT percentile(duration_ns, 99) FROM mine",
        "SELECT count(*) OVER () FROM cuda_events AS ops",
        PER_CONTAINER,
    ],
)
def test_counts_of_stored_calls_say_how_many_there_were(recorded: Path, sql: str) -> None:
    (note,) = run_sql(recorded, sql).notes
    assert note.startswith("cuda_events holds 20 of 1,000 CUDA calls (2.0%)")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM cuda_events",
        "SELECT max(duration_ns) FROM cuda_events",
        "SELECT sum(count) FROM op_stats",
        "SELECT count(*) FROM ops",
        "SELECT sum(launches) FROM tenants",
        PER_CONTAINER_NCCL,  # all of them are stored
    ],
)
def test_what_is_exact_anyway_has_no_note(recorded: Path, sql: str) -> None:
    assert run_sql(recorded, sql).notes == ()


def test_the_statement_that_a_note_gives_is_answered_with_exact_counts(recorded: Path) -> None:
    (note,) = run_sql(recorded, "SELECT pid, op, count(*) FROM cuda_events GROUP BY 1, 2").notes
    answer = run_sql(recorded, note.partition("Exact: ")[2])
    assert answer.columns == ("pid", "op_name", "calls", "total_ms")
    assert (10, "cudaStreamSynchronize", 1000, 4000.0) in answer.rows


def test_the_note_on_launches_by_kernel_asks_the_table_of_launches(recorded: Path) -> None:
    (note,) = run_sql(recorded, PER_CONTAINER).notes
    exact, _, times = note.partition("Exact: ")[2].partition("; exact times")
    answer = run_sql(recorded, exact)
    assert answer.columns == ("container_id", "kernel_name", "calls")
    assert "op_stats" in times


def test_a_recording_of_every_call_has_no_note(tmp_path: Path) -> None:
    path = tmp_path / "all.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=1), node="n") as writer:
        row = tables.OP_STATS.rows(
            1, session=writer.session, start_ns=1, process=1, source=1, op=5, count=7, recorded=7, sum_ns=1
        )
        writer.append(tables.OP_STATS, row)
    assert run_sql(path, "SELECT count(*) FROM events").notes == ()


def test_rows_that_the_size_limit_took_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "small.db"
    with Writer(path, session=SessionFacts(uuid="u", started_ns=1), node="n") as writer:
        gone = tables.PRUNED.rows(
            1, name="raw_events", kind="removed", until_ns=10**18, rows=1234, noted_ns=1, max_db_bytes=1
        )
        writer.append(tables.PRUNED, gone)
    (note,) = run_sql(path, "SELECT count(*) FROM events").notes
    assert note.startswith("1,234 rows older than 2001-")


def test_an_older_file_without_exact_counts_says_so(older: Path) -> None:
    (note,) = run_sql(older, "SELECT count(*) FROM events").notes
    assert "no exact counts" in note
